"""Nodes, publishers and routers as processes around a real API server: from `serve` to `kubectl get` and to `admit`."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hisparse_svc.fleet import KubernetesNodes, aio
from hisparse_svc.kube.api import Api

from tests.conftest import run
from tests.serve.test_access import Authority

pytest.importorskip("kubernetes.client", reason="no Kubernetes client: run make setup")
from tests.kube.directory import Scene, grant, install, installed, reader, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hisparse_svc.fleet import Fleet, Hint

    from tests.kube.cluster import Cluster


@pytest.fixture(scope="module", autouse=True)
def kind(kube: Cluster) -> Iterator[None]:
    with installed(kube):
        yield


@pytest.fixture
def scene(kube: Cluster, namespace: str, tmp_path: Path) -> Iterator[Scene]:
    """A namespace whose publishers and routers have their rights and no more."""
    grant(kube, namespace)
    made = Scene(kube, namespace, tmp_path, reader(kube, namespace))
    try:
        yield made
    finally:
        made.close()


def hint(fleet: Fleet, name: str) -> Hint | None:
    return {node.name: node.hint for node in fleet.nodes()}.get(name)


def is_stale(fleet: Fleet, name: str) -> Callable[[], bool]:
    def look() -> bool:
        found = hint(fleet, name)
        return found is not None and found.stale

    return look


def states(fleet: Fleet) -> dict[str, str]:
    return {node.name: node.state for node in fleet.nodes()}


def row(scene: Scene, name: str) -> list[str]:
    """A node's line of `kubectl get`."""
    lines = scene.kube.kubectl("get", "hisparsenodes", namespace=scene.namespace).out.splitlines()
    return next(line.split() for line in lines if line.startswith(f"{name} "))


def document(scene: Scene, name: str) -> dict[str, Any]:
    """A node as `hisparse-svc fleet` tells it to a router's user, in a process of its own."""
    told = scene.cli(run, "--json")
    assert told.code == 0, told.err
    found: dict[str, Any] = next(node for node in told.document["nodes"] if node["name"] == name)
    return found


def test_a_request_finds_its_node_through_the_directory_and_what_it_takes_is_seen_there(scene: Scene) -> None:
    served = scene.node("decode-0")
    scene.node("decode-1")
    assert row(scene, "decode-0")[:5] == ["decode-0", "glm-5.2", "Serving", "4", "19840"]
    pod = scene.shown("decode-0")["metadata"]["ownerReferences"]
    assert [(owner["kind"], owner["name"]) for owner in pod] == [("Pod", "decode-0")]
    lease = scene.lease("decode-0")
    assert [owner.uid for owner in lease.metadata.owner_references] == [pod[0]["uid"]]
    assert (lease.spec.holder_identity, lease.spec.lease_duration_seconds) == (pod[0]["uid"], 5)

    fleet = scene.fleet()
    until(lambda: states(fleet) == {"decode-0": "live", "decode-1": "live"})
    with fleet.admit(9_000, 1_000) as first, fleet.admit(9_000, 1_000) as second:
        assert {first.node, second.node} == {"decode-0", "decode-1"}
        assert first.target == scene.shown(first.node)["spec"]["address"]
        until(lambda: row(scene, "decode-0")[3] == "3", 5.0)
        told = document(scene, "decode-0")
        assert (told["state"], told["free"]["seats"]) == ("live", 3)
        assert (told["directory"]["state"], told["directory"]["stale"]) == ("serving", False)
        until(lambda: document(scene, "decode-0")["directory"]["free"]["seats"] == 3, 5.0)
    drawn = scene.cli(run)
    assert drawn.code == 0
    assert "directory" in drawn.out.splitlines()[0]

    served.client().drain()
    until(lambda: row(scene, "decode-0")[2] == "Draining", 5.0)
    with fleet.admit(4_096, 64) as held:
        assert held.node == "decode-1"
    served.client().drain(resume=True)
    until(lambda: row(scene, "decode-0")[2] == "Serving", 15.0)


def test_over_tls_nodes_that_share_a_certificate_are_dialled_by_their_addresses(scene: Scene, tmp_path: Path) -> None:
    """As pods are; and with the asyncio fleet."""
    authority = Authority(tmp_path).begin()
    node, router = authority.issue("node", "DNS:hisparse-decode"), authority.issue("router", "DNS:hisparse-router")
    flags = (
        *(
            "--tls-cert",
            str(node.cert),
            "--tls-key",
            str(node.key),
            "--tls-client-ca",
            str(authority.folder / "ca.pem"),
        ),
        *("--access", f"cert:hisparse-router=router uid:{os.getuid()}=router"),
    )
    for name in ("decode-0", "decode-1"):
        scene.node(name, *flags)
    directory = KubernetesNodes(scene.namespace, api=Api(scene.router.client.configuration))

    async def admit() -> set[str]:
        async with aio.Fleet(directory, tls=replace(router, server_name="hisparse-decode")) as fleet:
            assert await fleet.wait_until_seen()
            async with fleet.admit(9_000, 1_000) as first, fleet.admit(9_000, 1_000) as second:
                return {first.node, second.node}

    assert asyncio.run(admit()) == {"decode-0", "decode-1"}
    told = document(scene, "decode-0")
    assert (told["state"], told["directory"]["state"]) == ("silent", "serving"), "without certificates: its word alone"


def test_a_killed_publishers_node_is_stale_to_every_router_and_serves_on(scene: Scene) -> None:
    scene.node("decode-0")
    scene.node("decode-1")
    routers = [scene.fleet(), scene.fleet()]
    for fleet in routers:
        until(lambda fleet=fleet: states(fleet) == {"decode-0": "live", "decode-1": "live"})
    publisher = scene.publishers["decode-0"]
    publisher.send_signal(signal.SIGKILL)
    publisher.wait()
    killed = time.monotonic()
    assert not is_stale(routers[0], "decode-0")()
    for fleet in routers:
        until(is_stale(fleet, "decode-0"), 10.0)
        assert 2.0 < time.monotonic() - killed < 10.0, "the Lease's 5 s, from when it was seen renewed"
        assert not is_stale(fleet, "decode-1")()
        assert states(fleet) == {"decode-0": "live", "decode-1": "live"}, "the node itself is the truth"
    told = document(scene, "decode-0")
    assert (told["state"], told["directory"]["stale"]) == ("live", True), "at its first sight too"
    assert told["directory"]["age_ms"] >= 4_000
    line = next(line for line in scene.cli(run).out.splitlines() if line.startswith("decode-0"))
    assert "stale, serving" in line
    with routers[0].admit(9_000, 1_000), routers[0].admit(9_000, 1_000) as held:
        assert held.lease.pages > 0, "both nodes take requests"


def test_a_killed_node_is_unreachable_and_nobody_vouches_for_it(scene: Scene) -> None:
    served = scene.node("decode-0")
    fleet = scene.fleet()
    until(lambda: states(fleet) == {"decode-0": "live"})
    served.process.kill()
    until(lambda: scene.state("decode-0") == "Unreachable", 15.0)
    assert "nothing answers" in scene.shown("decode-0")["status"]["reason"]
    renewed = scene.lease("decode-0").spec.renew_time
    until(is_stale(fleet, "decode-0"), 15.0)
    assert scene.lease("decode-0").spec.renew_time == renewed
    assert states(fleet) == {"decode-0": "silent"}
    told = document(scene, "decode-0")
    assert (told["state"], told["directory"]["state"], told["directory"]["stale"]) == ("silent", "unreachable", True)
    assert "(4)" in scene.cli(run).out, "what the directory knew last, in brackets"


def test_a_node_whose_publisher_is_told_to_stop_has_left(scene: Scene) -> None:
    scene.node("decode-0")
    scene.node("decode-1")
    fleet = scene.fleet()
    until(lambda: len(fleet.nodes()) == 2)
    publisher = scene.publishers["decode-0"]
    publisher.terminate()
    assert publisher.wait(timeout=10) == 0
    until(lambda: list(states(fleet)) == ["decode-1"], 5.0)
    assert scene.state("decode-0") == "Stopped"
    assert scene.lease("decode-0").spec.holder_identity is None
    assert "Traceback" not in scene.log("decode-0")


def test_of_two_publishers_of_one_object_the_second_names_the_first_at_once_and_who_stops_takes_no_node_away(
    scene: Scene,
) -> None:
    scene.node("decode-0")
    first = scene.shown("decode-0")["spec"]["address"]
    scene.node("second", wait=False, of="decode-0")
    until(lambda: scene.shown("decode-0")["spec"]["address"] != first)
    until(lambda: "the Lease is written" in scene.log("second"))
    assert scene.log("second").splitlines()[1].startswith(f"warning: {first} was published as this HisparseNode ")
    publisher = scene.publishers["decode-0"]
    publisher.terminate()
    assert publisher.wait(timeout=10) == 0
    second = scene.shown("decode-0")["spec"]["address"]
    assert scene.log("decode-0").splitlines()[-1] == f"this HisparseNode and its Lease are left to {second}"
    assert scene.state("decode-0") == "Serving"
    assert scene.lease("decode-0").spec.holder_identity
    other = scene.publishers["second"]
    other.terminate()
    assert other.wait(timeout=10) == 0
    assert scene.state("decode-0") == "Stopped", "nobody else is there any more"


def test_an_object_that_is_deleted_is_written_again(scene: Scene) -> None:
    scene.refresh_s = "5"
    scene.node("decode-0")
    gone = scene.shown("decode-0")["metadata"]["uid"]
    done = scene.kube.kubectl("delete", "hisparsenode,lease", "--all", namespace=scene.namespace)
    assert done.code == 0, done.err
    anew = until(lambda: scene.shown("decode-0").get("status") and scene.shown("decode-0"), 20.0)
    assert anew["metadata"]["uid"] != gone
    assert until(lambda: scene.lease("decode-0"), 20.0).spec.holder_identity


def test_while_the_api_server_is_away_all_goes_on_and_then_it_is_followed_again(scene: Scene) -> None:
    served = scene.node("decode-0")
    fleet = scene.fleet()
    until(lambda: states(fleet) == {"decode-0": "live"})
    with scene.kube.away():
        time.sleep(8.0)
        assert scene.publishers["decode-0"].poll() is None
        assert "does not answer" in str(fleet.failure)
        assert not is_stale(fleet, "decode-0")(), "longer than a Lease, and nobody could be seen to renew"
    with fleet.admit(9_000, 1_000) as held:
        assert held.node == "decode-0"
        until(lambda: fleet.failure is None, 40.0)
        until(lambda: row(scene, "decode-0")[3] == "3", 20.0)
    assert not is_stale(fleet, "decode-0")()
    log = scene.log("decode-0")
    assert "cannot be written: the Kubernetes API at" in log
    assert "is written again, after" in log
    served.client().drain()
    until(lambda: getattr(hint(fleet, "decode-0"), "state", "") == "draining", 10.0)
    scene.node("decode-1")
    until(lambda: "decode-1" in states(fleet), 5.0)
    for publisher in scene.publishers.values():
        publisher.send_signal(signal.SIGKILL)
    until(is_stale(fleet, "decode-0"), 15.0)


def test_a_kind_that_is_deleted_and_made_anew_takes_no_node_from_a_router(scene: Scene) -> None:
    scene.refresh_s = "5"
    names = {"decode-0", "decode-1"}
    for name in sorted(names):
        scene.node(name)
    fleet = scene.fleet()
    until(lambda: set(states(fleet)) == names)
    done = scene.kube.kubectl("delete", "crd", "hisparsenodes.hisparse.io")
    try:
        assert done.code == 0, done.err
        until(lambda: "the cluster has no such kind" in str(fleet.failure), 10.0)
        assert set(states(fleet)) == names
        fleet.admit(9_000, 1_000).release()
    finally:
        install(scene.kube)
    until(lambda: fleet.failure is None, 20.0)
    anew = time.monotonic() + 60.0
    while not all(scene.shown(name).get("status") for name in names):
        assert set(states(fleet)) == names, "also while the kind is there without its objects"
        assert time.monotonic() < anew
        time.sleep(0.2)


def test_without_the_kind_both_sides_say_what_to_apply_and_go_on_when_it_is_there(scene: Scene) -> None:
    done = scene.kube.kubectl("delete", "crd", "hisparsenodes.hisparse.io")
    assert done.code == 0, done.err
    try:
        until(lambda: scene.kube.kubectl("get", "hisparsenodes", namespace=scene.namespace).code != 0)
        told = scene.cli(run)
        assert told.code == 3
        assert "the cluster has no such kind: apply deploy/kubernetes/cluster" in told.errors[0]
        scene.node("decode-0", wait=False)
        until(lambda: "apply deploy/kubernetes/cluster" in scene.log("decode-0"))
    finally:
        install(scene.kube)
    until(lambda: scene.shown("decode-0").get("status"), 40.0)
    assert document(scene, "decode-0")["directory"]["state"] == "serving"
