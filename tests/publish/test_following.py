"""A real node as its publisher follows it: every state, and what is told of it."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from hisparse_svc import Client
from hisparse_svc.kube import objects
from hisparse_svc.kube.following import NOT_READY, FollowedNode

from tests.serve.conftest import serve, small, start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.serve.conftest import Served

__all__ = ["serve"]


@pytest.fixture
def follow() -> Iterator[Callable[[str], FollowedNode]]:
    """Follows nodes, and stops."""
    made: list[FollowedNode] = []

    def begin(target: str, changed: threading.Event | None = None) -> FollowedNode:
        made.append(FollowedNode(Client(target), [8_192], (changed or threading.Event()).set))
        return made[-1]

    yield begin
    for node in made:
        node.close()


def until(node: FollowedNode, state: str, longest_s: float = 10.0) -> Any:
    over = time.monotonic() + longest_s
    while (seen := node.condition()).state != state:
        assert time.monotonic() < over, seen
        time.sleep(0.02)
    return seen


def test_a_node_serves_drains_and_falls_silent(
    serve: Callable[..., Served], follow: Callable[..., FollowedNode]
) -> None:
    served, changed = serve(), threading.Event()
    node = follow(served.target, changed)
    seen = until(node, objects.SERVING)
    assert (seen.reason, seen.info.model, seen.info.page_tokens) == ("", "glm-5.2", 64)
    assert [fit.tokens for fit in seen.capacity.fits] == [8_192]
    changed.clear()
    client = served.client()
    with client.admit(9_000, 1_000):
        assert changed.wait(2)
        assert node.condition().capacity.pool("seats").free == 3
    changed.clear()
    client.drain()
    assert changed.wait(2)
    assert until(node, objects.DRAINING).reason == "an operator drains it"
    client.drain(resume=True)
    until(node, objects.SERVING)
    epoch = node.condition().capacity.epoch
    served.process.kill()
    served.process.wait()
    changed.clear()
    seen = until(node, objects.UNREACHABLE)
    assert "there is no socket" in seen.reason or "nothing answers" in seen.reason
    assert seen.capacity.epoch == epoch, "what it had last stays known"
    assert changed.wait(2)


def test_a_node_that_hangs_is_unreachable_though_its_stream_is_open(
    serve: Callable[..., Served], follow: Callable[..., FollowedNode]
) -> None:
    served = serve()
    node = follow(served.target)
    until(node, objects.SERVING)
    served.process.send_signal(signal.SIGSTOP)
    try:
        assert "no answer" in until(node, objects.UNREACHABLE, 15.0).reason
    finally:
        served.process.send_signal(signal.SIGCONT)
    until(node, objects.SERVING)


def test_a_node_that_does_not_know_its_leases_recovers(tmp_path: Path, follow: Callable[..., FollowedNode]) -> None:
    socket = tmp_path / "node.sock"
    first = start(socket, *small())
    first.process.kill()
    first.process.communicate()
    (tmp_path / "node.sock.journal").unlink()
    second = start(socket, *small())
    try:
        assert until(follow(second.target), objects.RECOVERING).reason == NOT_READY
    finally:
        second.end()
        second.process.communicate()


def test_another_run_of_a_node_is_told_with_its_own_facts(tmp_path: Path, follow: Callable[..., FollowedNode]) -> None:
    socket = tmp_path / "node.sock"
    first = start(socket, *small())
    node = follow(first.target)
    before = until(node, objects.SERVING)
    first.end()
    first.process.communicate()
    second = start(socket, *small())
    over = time.monotonic() + 10
    while (seen := node.condition()).info is None or seen.info.started_at == before.info.started_at:
        assert time.monotonic() < over
        time.sleep(0.02)
    assert until(node, objects.SERVING).capacity.epoch > before.capacity.epoch
    second.end()
    second.process.communicate()
