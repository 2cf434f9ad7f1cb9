"""A fleet that follows the EndpointSlices of a Service of a real API server, under an account that may do just that."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from hisparse_svc import NotAllowed, Unreachable, fleet
from hisparse_svc.kube.api import Api

from tests.serve.test_access import Authority

api = pytest.importorskip("kubernetes.client", reason="no Kubernetes client: run make setup")

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kube.cluster import Cluster

FOLLOWS = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
"""All that docs/fleet.md asks for."""


def endpoint_slice(name: str, service: str, *pods: tuple[str, str, bool]) -> dict[str, Any]:
    """As the controller of EndpointSlices makes them."""
    return {
        "addressType": "IPv4",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
        "ports": [{"name": "http", "port": 7412}, {"name": "hisparse-grpc", "port": 7411}],
        "endpoints": [
            {"addresses": [address], "conditions": {"ready": ready}, "targetRef": {"kind": "Pod", "name": pod}}
            for pod, address, ready in pods
        ],
    }


@pytest.fixture
def slices(kube: Cluster) -> api.DiscoveryV1Api:
    return api.DiscoveryV1Api(kube.admin)


def targets(members: Iterator[tuple[fleet.Member, ...]]) -> dict[str, str]:
    return {member.name: member.target for member in next(members)}


def test_slices_that_appear_change_and_go_are_members_that_do(
    kube: Cluster, namespace: str, slices: api.DiscoveryV1Api
) -> None:
    account = kube.account(namespace, "router", [FOLLOWS])
    closing = threading.Event()
    service = fleet.EndpointSlices("decode", namespace, port="hisparse-grpc", api=Api(account.client.configuration))
    following = service.follow(closing)
    assert targets(following) == {}, "a Service without pods is an empty fleet"
    slices.create_namespaced_endpoint_slice(namespace, endpoint_slice("other", "prefill", ("p", "10.0.0.9", True)))
    first = endpoint_slice("a", "decode", ("decode-0", "10.0.0.1", True), ("decode-1", "10.0.0.2", False))
    slices.create_namespaced_endpoint_slice(namespace, first)
    assert targets(following) == {"decode-0": "10.0.0.1:7411"}, "of the other Service's slice nothing is seen"
    slices.create_namespaced_endpoint_slice(namespace, endpoint_slice("b", "decode", ("decode-2", "10.0.0.3", True)))
    assert targets(following) == {"decode-0": "10.0.0.1:7411", "decode-2": "10.0.0.3:7411"}
    changed = endpoint_slice("a", "decode", ("decode-0", "10.0.0.1", False), ("decode-1", "10.0.0.2", True))
    slices.replace_namespaced_endpoint_slice("a", namespace, changed)
    assert targets(following) == {"decode-1": "10.0.0.2:7411", "decode-2": "10.0.0.3:7411"}
    slices.delete_namespaced_endpoint_slice("a", namespace)
    assert targets(following) == {"decode-2": "10.0.0.3:7411"}
    closing.set()
    slices.delete_namespaced_endpoint_slice("b", namespace)
    assert list(following) == []


def test_it_finds_the_cluster_of_a_kubeconfig(
    kube: Cluster, namespace: str, slices: api.DiscoveryV1Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = kube.account(namespace, "router", [FOLLOWS])
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(account.kubeconfig))
    slices.create_namespaced_endpoint_slice(namespace, endpoint_slice("a", "decode", ("decode-0", "10.0.0.1", True)))
    service = fleet.EndpointSlices("decode", namespace, port=7411)
    assert targets(service.follow(threading.Event())) == {"decode-0": "10.0.0.1:7411"}


@pytest.mark.parametrize("verbs", [(), ("list",), ("watch",)])
def test_an_account_without_a_right_says_which_one_it_lacks(
    kube: Cluster, namespace: str, verbs: tuple[str, ...]
) -> None:
    account = kube.account(namespace, "router", [{**FOLLOWS, "verbs": list(verbs)}] if verbs else [])
    service = fleet.EndpointSlices("decode", namespace, api=Api(account.client.configuration))
    following = service.follow(threading.Event())
    lacks = "watch" if verbs == ("list",) else "list"
    if lacks == "watch":
        assert next(following) == ()
    with pytest.raises(NotAllowed) as refused:
        next(following)
    who = f'"system:serviceaccount:{namespace}:router"'
    what = f'"endpointslices" in API group "discovery.k8s.io" in the namespace "{namespace}"'
    assert f"User {who} cannot {lacks} resource {what}" in str(refused.value)
    assert str(refused.value).endswith("; let the account list and watch endpointslices of discovery.k8s.io")


def test_a_token_that_the_cluster_does_not_know_says_so(kube: Cluster, namespace: str) -> None:
    service = fleet.EndpointSlices("decode", namespace, api=Api(kube.client("no-token").configuration))
    with pytest.raises(
        NotAllowed, match="401 Unauthorized: Unauthorized; look whether the token or certificate is this cluster's"
    ):
        next(service.follow(threading.Event()))


def test_a_cluster_that_is_known_by_another_authority_is_not_reached(
    kube: Cluster, namespace: str, tmp_path: Path
) -> None:
    other = Authority(tmp_path).begin()
    settings = api.Configuration(host=kube.url)
    settings.ssl_ca_cert = str(other.folder / "ca.pem")
    service = fleet.EndpointSlices("decode", namespace, api=Api(settings))
    with pytest.raises(Unreachable, match="certificate"):
        next(service.follow(threading.Event()))
