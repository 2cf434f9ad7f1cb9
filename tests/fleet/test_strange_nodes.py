"""Nodes of another version, with another clock, or another authority: each is said, and none takes the fleet down."""

from __future__ import annotations

from concurrent import futures
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from hisparse_svc import Tls, fleet
from hisparse_svc._proto import types_pb2

from tests.conformance.faulty import Fault, Faulty, Refusal
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


def test_a_wrong_certificate_is_said_of_its_node(
    serve: Callable[..., Served], fleet_of: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    ours, theirs = Authority(tmp_path / "ours").begin(), Authority(tmp_path / "theirs").begin()
    certificate = ours.issue("node", "DNS:localhost,IP:127.0.0.1")
    served = serve(
        *("--listen", "0.0.0.0:0", "--tls-cert", str(certificate.cert), "--tls-key", str(certificate.key)),
        *("--tls-client-ca", str(ours.folder / "ca.pem"), "--access", "cert:router.example=router"),
    )
    router, stranger = ours.issue("router", "DNS:router.example"), theirs.issue("router", "DNS:router.example")
    target = port_of(served)
    assert fleet_of([target], tls=router).admit(100).node == target
    mixed = Tls(ca=ours.folder / "ca.pem", cert=stranger.cert, key=stranger.key)
    for tls, said in ((stranger, "is not believed"), (mixed, "refuses this client's certificate")):
        with pytest.raises(fleet.NoNodeAnswers, match=said):
            fleet_of([target], tls=tls).admit(100)
