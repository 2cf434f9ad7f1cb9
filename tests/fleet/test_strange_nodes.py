"""Nodes of another version, with another clock, or another authority: each is said, and none takes the fleet down."""

from __future__ import annotations

from concurrent import futures
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from hisparse_svc import Tls, fleet
from hisparse_svc._proto import types_pb2

from tests.conformance.faulty import Fault, Faulty, Refusal
from tests.conftest import run
from tests.serve.test_access import Authority, port_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.serve.conftest import Served


@pytest.fixture
def of_another_version(tmp_path: Path) -> Iterator[str]:
    """A gRPC server that has none of the calls of this version."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_insecure_port(f"unix:{tmp_path}/old.sock")
    server.start()
    yield f"unix:{tmp_path}/old.sock"
    server.stop(0).wait()


def test_a_node_of_another_version_is_named_and_passed_by(
    of_another_version: str, serve: Callable[..., Served], fleet_of: Callable[..., Any]
) -> None:
    node = serve()
    nodes = fleet_of([f"old={of_another_version}", f"new={node.target}"])
    nodes.wait_until_seen()
    assert nodes.admit(100).node == "new"
    (old,) = (view for view in nodes.nodes() if view.name == "old")
    assert old.state == "silent"
    assert "run a server of the client's version" in old.failure
    alone = fleet_of([of_another_version])
    with pytest.raises(fleet.NoNodeAnswers, match="run a server of the client's version"):
        alone.admit(100)


class Newer(Fault):
    """A node that knows a pool and a refusal that this version does not."""

    def told(self, name: str, answers: Iterator[Any]) -> Iterator[Any]:
        del name
        for message in answers:
            if message.WhichOneof("event") == "snapshot":
                message.snapshot.pools.append(types_pb2.Pool(name="bandwidth", total=10, reserved=10))
            yield message

    def instead(self, name: str, request: Any) -> Any:
        del request
        if name == "Admit":
            info = error_details_pb2.ErrorInfo(reason="TOO_WARM", domain="hisparse.v1")
            status = status_pb2.Status(code=grpc.StatusCode.UNAVAILABLE.value[0], message="too warm")
            status.details.add().Pack(info)
            raise Refusal(grpc.StatusCode.UNAVAILABLE, "too warm", status)


def test_a_word_of_a_newer_node_is_a_refusal_and_nothing_is_settled(
    serve: Callable[..., Served], fleet_of: Callable[..., Any], tmp_path: Path
) -> None:
    newer, node = serve(name="a"), serve(name="b")
    node.client().admit(1_000, ttl_s=60)
    with Faulty(newer.target, tmp_path / "p.sock", Newer()) as proxy:
        nodes = fleet_of([f"newer={proxy.target}", f"node={node.target}"])
        nodes.wait_until_seen()
        held = nodes.admit(100)
        assert (held.node, [each.reason for each in held.attempts]) == ("node", ["TOO_WARM"])


class ClockIsWrong(Fault):
    """Every time that the node says is a day off."""

    off = timedelta(days=1)

    def told(self, name: str, answers: Iterator[Any]) -> Iterator[Any]:
        del name
        for message in answers:
            event = message.WhichOneof("event")
            if event in ("snapshot", "delta"):
                self._turn(getattr(message, event).observed_at)
            yield message

    def answered(self, name: str, request: Any, answer: Any) -> Any:
        del request
        if name == "GetCapacity":
            self._turn(answer.observed_at)
        if name == "Admit":
            self._turn(answer.capacity.observed_at)
            self._turn(answer.lease.expire_time)
        return answer

    def _turn(self, stamp: Any) -> None:
        stamp.FromDatetime(stamp.ToDatetime() + self.off)


class ClockIsBehind(ClockIsWrong):
    off = timedelta(days=-1)


@pytest.mark.parametrize("fault", [ClockIsWrong, ClockIsBehind], ids=lambda fault: fault.__name__)
def test_freshness_is_told_by_ones_own_clock(
    fault: type[Fault], serve: Callable[..., Served], fleet_of: Callable[..., Any], tmp_path: Path
) -> None:
    skewed, right = serve(name="a"), serve(name="b")
    with Faulty(skewed.target, tmp_path / "p.sock", fault()) as proxy:
        nodes = fleet_of([f"skewed={proxy.target}", f"right={right.target}"])
        nodes.wait_until_seen()
        for view in nodes.nodes():
            assert view.state == "live", view
            assert 0 <= view.age_s < 3
        used = {nodes.admit(100).node for _ in range(4)}
        assert used == {"skewed", "right"}, "each grant is seen at once, whatever the node's clock says"


@dataclass(frozen=True)
class Guarded:
    """A node that wants certificates, and three routers of which one has the right ones."""

    target: str
    router: Tls
    stranger: Tls
    mixed: Tls
    """Believes the node, which does not believe it."""


@pytest.fixture
def guarded(serve: Callable[..., Served], tmp_path: Path) -> Guarded:
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    ours, theirs = Authority(tmp_path / "ours").begin(), Authority(tmp_path / "theirs").begin()
    certificate = ours.issue("node", "DNS:localhost,IP:127.0.0.1")
    served = serve(
        *("--listen", "0.0.0.0:0", "--tls-cert", str(certificate.cert), "--tls-key", str(certificate.key)),
        *("--tls-client-ca", str(ours.folder / "ca.pem"), "--access", "cert:router.example=router"),
    )
    router, stranger = ours.issue("router", "DNS:router.example"), theirs.issue("router", "DNS:router.example")
    mixed = Tls(ca=ours.folder / "ca.pem", cert=stranger.cert, key=stranger.key)
    return Guarded(port_of(served), router, stranger, mixed)


def test_a_wrong_certificate_is_said_of_its_node(guarded: Guarded, fleet_of: Callable[..., Any]) -> None:
    assert fleet_of([guarded.target], tls=guarded.router).admit(100).node == guarded.target
    for tls, said in ((guarded.stranger, "is not believed"), (guarded.mixed, "refuses this client's certificate")):
        with pytest.raises(fleet.NoNodeAnswers, match=said):
            fleet_of([guarded.target], tls=tls).admit(100)


# --- as `hisparse-svc fleet` shows them ------------------------------------------------------------------------------


def shown(target: str, *flags: str) -> tuple[dict[str, Any], str]:
    """Give the nodes of the document by name, and what stands beside the table that people get."""
    told, drawn = (run("fleet", "--target", target, *flags, *more) for more in (["--json"], []))
    assert (told.code, drawn.code) == (0, 0), drawn.err
    return {node["name"]: node for node in told.document["nodes"]}, drawn.err


def test_the_command_names_a_node_of_another_version(of_another_version: str, serve: Callable[..., Served]) -> None:
    nodes, beside = shown(f"old={of_another_version},new={serve().target}")
    assert (nodes["old"]["state"], nodes["new"]["state"]) == ("silent", "live")
    for said in (nodes["old"]["failure"], beside):
        assert "run a server of the client's version" in said
    assert beside.startswith("old: ")
    alone = run("fleet", "--target", of_another_version + ",")
    assert (alone.code, len(alone.errors)) == (3, 1)
    assert alone.errors[0].startswith("the node does not answer: unix:")
    assert alone.errors[0].endswith("run a server of the client's version")


def test_the_command_says_whose_certificate_is_wrong(guarded: Guarded, serve: Callable[..., Served]) -> None:
    plain = serve(name="plain")  # a Unix socket takes no certificate

    def flags(tls: Tls) -> tuple[str, ...]:
        return ("--ca", str(tls.ca), "--cert", str(tls.cert), "--key", str(tls.key))

    target = f"guarded={guarded.target},plain={plain.target}"
    nodes, beside = shown(target, *flags(guarded.router))
    assert ({node["state"] for node in nodes.values()}, beside) == ({"live"}, "")
    for tls, said in ((guarded.stranger, "is not believed"), (guarded.mixed, "refuses this client's certificate")):
        nodes, beside = shown(target, *flags(tls))
        assert (nodes["guarded"]["state"], nodes["plain"]["state"]) == ("silent", "live")
        assert said in nodes["guarded"]["failure"]
        assert said in beside
        alone = run("fleet", "--target", f"guarded={guarded.target}", *flags(tls))
        assert (alone.code, len(alone.errors)) == (3, 1)
        assert said in alone.errors[0]


@pytest.mark.parametrize("fault", [ClockIsWrong, ClockIsBehind], ids=lambda fault: fault.__name__)
def test_the_command_shows_age_by_ones_own_clock(
    fault: type[Fault], serve: Callable[..., Served], tmp_path: Path
) -> None:
    with Faulty(serve().target, tmp_path / "p.sock", fault()) as proxy:
        nodes, beside = shown(f"skewed={proxy.target}")
    assert (nodes["skewed"]["state"], beside) == ("live", "")
    assert 0 <= nodes["skewed"]["age_ms"] < 3_000


def test_the_command_shows_a_fleet_that_is_draining(serve: Callable[..., Served]) -> None:
    served = [serve(name=name) for name in "ab"]
    for node in served:
        node.client().drain()
    target = ",".join(node.target for node in served)
    nodes, _ = shown(target)
    assert {node["state"] for node in nodes.values()} == {"draining"}
    told = run("fleet", "--target", target, "--length", "64", "--json")
    assert told.document["fits"] == [{"tokens": 64, "count": 0, "nodes": 0}]
