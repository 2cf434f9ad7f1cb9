"""What a directory says of nodes beside who they are: seen before the node's own word, and beaten by it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hisparse_svc.fleet import Hint, Member

from tests.publish.sample import capacity

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.serve.conftest import Served


class Told:
    """A directory that says what the test puts in."""

    def __init__(self, *members: Member) -> None:
        self.members: tuple[Member, ...] = members

    def follow(self, closing: threading.Event) -> Iterator[tuple[Member, ...]]:
        told = None
        while not closing.is_set():
            if self.members is not told:
                told = self.members
                yield told
            closing.wait(0.02)

    def __str__(self) -> str:
        return "the test"


def hint(*, stale: bool, state: str = "serving") -> Hint:
    return Hint(state, stale, time.monotonic(), capacity())


def until(true: Callable[[], Any]) -> None:
    over = time.monotonic() + 5
    while not true():
        assert time.monotonic() < over
        time.sleep(0.01)


def test_of_nodes_that_say_nothing_those_that_nobody_vouches_for_come_last(
    fleet_of: Callable[..., Any], serve: Callable[..., Served], tmp_path: Path
) -> None:
    served = serve(name="there")
    directory = Told(
        Member("doubtful", f"unix:{tmp_path}/a", hint(stale=True)),
        Member("vouched", f"unix:{tmp_path}/b", hint(stale=False)),
        Member("there", served.target, hint(stale=True)),
        Member("plain", f"unix:{tmp_path}/c"),
    )
    fleet = fleet_of(directory)
    assert fleet.wait_until_seen()
    assert [place.name for place in fleet.rank(4_096)] == ["there", "vouched", "plain", "doubtful"]
    with_hints = {node.name: node for node in fleet.nodes()}
    assert with_hints["there"].state == "live", "its own word beats the directory's"
    assert with_hints["there"].capacity.pool("host_pages").total == 310
    assert with_hints["vouched"].capacity is None
    assert with_hints["vouched"].hint.capacity.pool("host_pages").total == 1_000
    assert with_hints["plain"].hint is None
    held = fleet.admit(4_096, 64)
    assert held.node == "there"
    held.release()


def test_a_newer_hint_is_seen_and_nobody_is_connected_to_anew(
    fleet_of: Callable[..., Any], serve: Callable[..., Served]
) -> None:
    served = serve(name="a")
    directory = Told(Member("a", served.target, hint(stale=False)))
    fleet = fleet_of(directory)
    held = fleet.admit(4_096, 64)
    client = fleet.client("a")
    directory.members = (Member("a", served.target, hint(stale=True, state="unreachable")),)
    until(lambda: fleet.nodes()[0].hint.stale)
    assert fleet.nodes()[0].state == "live"
    assert fleet.client("a") is client
    held.release()
