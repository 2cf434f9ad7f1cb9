"""A fleet that Kubernetes keeps the list of: the EndpointSlices of one Service, listed and then watched.

::

    list ─► slices ─► members ─► watch from there ─► a slice came, changed, left ─► members ─► …
                                    └─ ends, or is too old: list again

Needs the extra `kubernetes`. The account may `list` and `watch` `endpointslices` of `discovery.k8s.io`, nothing more.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hisparse_svc.fleet.directories.member import Member
from hisparse_svc.kube.api import client_library, configured, rejected
from hisparse_svc.rpc.refusals import NotAllowed, Unreachable

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Iterator

    from hisparse_svc.errors import HiSparseError

WATCH_S = 60
"""Longest watch before it begins anew: so often `closing` is seen where nothing happens."""
CALL_S = 10
REST_S = 1.0
"""Between two watches, so that one that ends at once is no busy loop."""
SERVICE_LABEL = "kubernetes.io/service-name"


class EndpointSlices:
    """The ready endpoints of a Service.

    Args:
        service: Its name.
        namespace: Its namespace.
        port: The port's name in the Service, or its number; `None` where it has only one.
        api: A `DiscoveryV1Api` of one's own; by default one from the pod's service account, else from the kubeconfig.

    Raises:
        InvalidInput: The official client is not installed, or no cluster is configured.
    """

    def __init__(
        self, service: str, namespace: str = "default", *, port: str | int | None = None, api: Any = None
    ) -> None:
        self.service, self.namespace, self.port = service, namespace, port
        self._client = client_library()
        self._api = (
            api if api is not None else self._client.DiscoveryV1Api(self._client.ApiClient(configured(self._client)))
        )

    def follow(self, closing: threading.Event) -> Iterator[tuple[Member, ...]]:
        """Give the members now, and after every change.

        Raises:
            NotAllowed: The account may not list them.
            Unreachable: The API server does not answer.
        """
        told: tuple[Member, ...] | None = None
        while not closing.is_set():
            for slices in self._rounds(closing):
                members = self.members(slices)
                if members != told:
                    told = members
                    yield members
            closing.wait(REST_S)

    def _rounds(self, closing: threading.Event) -> Iterator[Iterable[Any]]:
        """List, then watch until the watch ends; the slices after each event."""
        selector = f"{SERVICE_LABEL}={self.service}"
        list_slices = self._api.list_namespaced_endpoint_slice
        try:
            listed = list_slices(self.namespace, label_selector=selector, _request_timeout=CALL_S)
            slices = {each.metadata.name: each for each in listed.items}
            yield slices.values()
            stream = (
                importlib.import_module("kubernetes.watch")
                .Watch()
                .stream(
                    list_slices,
                    self.namespace,
                    label_selector=selector,
                    resource_version=listed.metadata.resource_version,
                    timeout_seconds=WATCH_S,
                    _request_timeout=WATCH_S + CALL_S,
                )
            )
            for event in stream:
                if closing.is_set():
                    return
                each = event["object"]
                if event["type"] == "DELETED":
                    slices.pop(each.metadata.name, None)
                elif event["type"] in ("ADDED", "MODIFIED"):
                    slices[each.metadata.name] = each
                yield slices.values()
        except self._client.ApiException as failure:
            if failure.status != 410:  # too old: list again
                raise self._error(failure) from None
        except (OSError, importlib.import_module("urllib3.exceptions").HTTPError) as failure:
            raise Unreachable(f"the Kubernetes API does not answer: {failure}; look whether it is up") from None

    def _error(self, failure: Any) -> HiSparseError:
        told = rejected(failure.status, failure.reason, (failure.body or "").encode())
        what = f"EndpointSlices of {self.namespace}/{self.service} cannot be read: {told}"
        if failure.status == 401:
            return NotAllowed(f"{what}; look whether the token or certificate is this cluster's, and not too old")
        if failure.status == 403:
            return NotAllowed(f"{what}; let the account list and watch endpointslices of discovery.k8s.io")
        return Unreachable(f"{what}; look at the API server")

    def members(self, slices: Iterable[Any]) -> tuple[Member, ...]:
        """Give the ready endpoints of slices, by their pods' names."""
        found: dict[str, Member] = {}
        for each in slices:
            port = self._port(each.ports or ())
            if port is None:
                continue
            for endpoint in each.endpoints or ():
                conditions = endpoint.conditions
                if conditions is not None and conditions.ready is False:
                    continue
                for address in (endpoint.addresses or ())[:1]:  # the others are the same endpoint
                    target = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
                    name = endpoint.target_ref.name if endpoint.target_ref else target
                    found[name] = Member(name, target)
        return tuple(found[name] for name in sorted(found))

    def _port(self, ports: Iterable[Any]) -> int | None:
        for each in ports:
            if self.port is None or self.port in (each.name, each.port):
                return None if each.port is None else int(each.port)
        return None

    def __str__(self) -> str:
        """Say where the members come from."""
        return f"EndpointSlices of {self.namespace}/{self.service}"
