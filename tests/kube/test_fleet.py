"""A fleet whose nodes are real services and whose directory is a real API server: they come, are asked, and go."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest
from hisparse_svc import Unreachable
from hisparse_svc.fleet import EndpointSlices, Fleet
from hisparse_svc.kube.api import Api

from tests.conftest import run
from tests.kube.test_endpoint_slices import FOLLOWS, endpoint_slice
from tests.serve.conftest import serve
from tests.serve.test_access import Authority

api = pytest.importorskip("kubernetes.client", reason="no Kubernetes client: run make setup")

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hisparse_svc import Tls

    from tests.kube.cluster import Account, Cluster
    from tests.serve.conftest import Served

__all__ = ["serve"]

SEEN_S = 10.0


def own_address() -> str:
    """An address of this machine that is not loopback, which no EndpointSlice may name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no address but loopback")
        address = str(asked.getsockname()[0])
    if address.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    return address


def until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + SEEN_S
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.05)


class Pool:
    """Two nodes with certificates, and a Service that has them."""

    def __init__(self, kube: Cluster, namespace: str, serve: Callable[..., Served], folder: Path) -> None:
        self.slices, self.namespace = api.DiscoveryV1Api(kube.admin), namespace
        address = own_address()
        authority = Authority(folder).begin()
        node = authority.issue("server", f"IP:{address}")
        self.router: Tls = authority.issue("router", "URI:spiffe://here/router")
        for name in ("decode-0", "decode-1"):
            served = serve(
                *("--listen", "0.0.0.0:0", "--tls-cert", str(node.cert), "--tls-key", str(node.key)),
                *("--tls-client-ca", str(authority.folder / "ca.pem")),
                *("--access", f"cert:spiffe://here/router=router uid:{os.getuid()}=admin"),
                name=name,
            )
            found = re.search(r"0\.0\.0\.0:(\d+)", served.ready)
            assert found, served.ready
            document = endpoint_slice(name, "decode", (name, address, True))
            document["ports"][1]["port"] = int(found[1])
            self.slices.create_namespaced_endpoint_slice(namespace, document)
        self.account: Account = kube.account(namespace, "router", [FOLLOWS])

    def leave(self, name: str) -> None:
        self.slices.delete_namespaced_endpoint_slice(name, self.namespace)

    def fleet(self) -> Fleet:
        mine = Api(self.account.client.configuration)
        return Fleet(EndpointSlices("decode", self.namespace, port="hisparse-grpc", api=mine), tls=self.router)


@pytest.fixture
def pool(kube: Cluster, namespace: str, serve: Callable[..., Served], tmp_path: Path) -> Pool:
    return Pool(kube, namespace, serve, tmp_path)


def names(fleet: Fleet) -> list[str]:
    return sorted(node.name for node in fleet.nodes())


def test_a_request_is_granted_by_a_node_that_the_service_has(pool: Pool) -> None:
    with pool.fleet() as fleet:
        assert fleet.wait_until_seen(SEEN_S)
        assert names(fleet) == ["decode-0", "decode-1"]
        with fleet.admit(64) as first, fleet.admit(10_000) as second:
            assert {first.node, second.node} <= {"decode-0", "decode-1"}
            pool.leave(first.node)
            until(lambda: first.node not in names(fleet), "a node whose slice went is still a member")
            with fleet.admit(64) as third:
                assert third.node != first.node
    until(
        lambda: all(thread.name != "hisparse-fleet-directory" for thread in threading.enumerate()),
        "a fleet that is closed still waits for its watch, which lasts a minute",
    )


def test_without_the_api_server_the_nodes_that_are_known_go_on(kube: Cluster, pool: Pool) -> None:
    with pool.fleet() as fleet:
        assert fleet.wait_until_seen(SEEN_S)
        with kube.away():
            until(lambda: isinstance(fleet.failure, Unreachable), "nobody says that the directory is away")
            with fleet.admit(64) as held:
                assert held.node in names(fleet)
        pool.leave("decode-0")
        until(lambda: names(fleet) == ["decode-1"], "it is not followed again")
        assert fleet.failure is None


def test_the_command_line_shows_them_under_a_kubeconfig(pool: Pool) -> None:
    of = ("--ca", str(pool.router.ca), "--cert", str(pool.router.cert), "--key", str(pool.router.key))
    target = ("--target", f"kubernetes:{pool.namespace}/decode:hisparse-grpc")
    shown = run("fleet", *target, *of, "--json", env={"KUBECONFIG": str(pool.account.kubeconfig)})
    assert shown.code == 0, shown.err
    assert sorted(node["name"] for node in shown.document["nodes"]) == ["decode-0", "decode-1"]
    elsewhere = run("fleet", "--target", "kubernetes:default/decode", env={"KUBECONFIG": str(pool.account.kubeconfig)})
    assert elsewhere.code != 0
    assert 'cannot list resource "endpointslices"' in elsewhere.err
