"""A fleet that Kubernetes keeps the list of: the EndpointSlices of one Service, listed and then watched.

::

    list ─► slices ─► members ─► watch from there ─► a slice came, changed, left ─► members ─► …
                                    └─ the version is too old: list again

Needs the extra `kubernetes`. The account may `list` and `watch` `endpointslices` of `discovery.k8s.io`, nothing more.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING
from urllib.parse import quote

from hisparse_svc.fleet.directories.member import Member
from hisparse_svc.kube.api import Api, Rejected, unreadable
from hisparse_svc.kube.reflector import Changed, Listed, Reflector

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hisparse_svc.kube.api import Document

SERVICE_LABEL = "kubernetes.io/service-name"
LOOK_S = 1.0
"""How often a thread that waits for `closing` looks whether it is still needed."""


class EndpointSlices:
    """The ready endpoints of a Service.

    Args:
        service: Its name.
        namespace: Its namespace.
        port: The port's name in the Service, or its number; `None` where it has only one.
        api: An API server of one's own; by default the pod's, else the kubeconfig's.

    Raises:
        InvalidInput: The official client is not installed, or no cluster is configured.
    """

    def __init__(
        self, service: str, namespace: str = "default", *, port: str | int | None = None, api: Api | None = None
    ) -> None:
        self.service, self.namespace, self.port = service, namespace, port
        self._api = api if api is not None else Api()

    def follow(self, closing: threading.Event) -> Iterator[tuple[Member, ...]]:
        """Give the members now, and after every change.

        Raises:
            NotAllowed: The account may not list or watch them.
            Unreachable: The API server does not answer.
        """
        path = f"/apis/discovery.k8s.io/v1/namespaces/{quote(self.namespace, safe='')}/endpointslices"
        reflector = Reflector(self._api, path, f"{SERVICE_LABEL}={self.service}")
        slices: dict[str, Document] = {}
        told: tuple[Member, ...] | None = None
        with _woken_by(closing, reflector):
            try:
                for event in reflector.follow(closing):
                    if isinstance(event, Listed):
                        slices = {each["metadata"]["name"]: each for each in event.items}
                    elif isinstance(event, Changed) and event.gone:
                        slices.pop(event.document["metadata"]["name"], None)
                    elif isinstance(event, Changed):
                        slices[event.document["metadata"]["name"]] = event.document
                    members = self.members(slices.values())
                    if members != told:
                        told = members
                        yield members
            except Rejected as failure:
                what = f"EndpointSlices of {self.namespace}/{self.service}"
                right = "let the account list and watch endpointslices of discovery.k8s.io"
                raise unreadable(what, failure, right=right) from None

    def members(self, slices: Iterable[Document]) -> tuple[Member, ...]:
        """Give the ready endpoints of slices, by their pods' names."""
        found: dict[str, Member] = {}
        for each in slices:
            port = self._port(each.get("ports") or ())
            if port is None:
                continue
            for endpoint in each.get("endpoints") or ():
                if (endpoint.get("conditions") or {}).get("ready") is False:
                    continue
                for address in (endpoint.get("addresses") or ())[:1]:  # the others are the same endpoint
                    target = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
                    name = (endpoint.get("targetRef") or {}).get("name") or target
                    found[name] = Member(name, target)
        return tuple(found[name] for name in sorted(found))

    def _port(self, ports: Iterable[Document]) -> int | None:
        for each in ports:
            if self.port is None or self.port in (each.get("name"), each.get("port")):
                return None if each.get("port") is None else int(each["port"])
        return None

    def __str__(self) -> str:
        """Say where the members come from."""
        return f"the Service {self.namespace}/{self.service}, in its EndpointSlices,"


@contextlib.contextmanager
def _woken_by(closing: threading.Event, reflector: Reflector) -> Iterator[None]:
    """Wake a watch that waits for an event when `closing` is set, from a thread of its own."""
    over = threading.Event()

    def wait() -> None:
        while not over.is_set():
            if closing.wait(LOOK_S):
                reflector.wake()
                return

    threading.Thread(target=wait, name="hisparse-fleet-closing", daemon=True).start()
    try:
        yield
    finally:
        over.set()
