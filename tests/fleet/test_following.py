"""A directory that fails is followed on, each time after a rest of its own."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from hisparse_svc.fleet import Member, following
from hisparse_svc.rpc.refusals import Unreachable

from tests.fleet.test_hints import until

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    import pytest
    from hisparse_svc.errors import HiSparseError


class Failing:
    """Fails so often, then names one node and waits."""

    def __init__(self, failures: int) -> None:
        self.left = failures

    def follow(self, closing: threading.Event) -> Iterator[tuple[Member, ...]]:
        if self.left:
            self.left -= 1
            raise Unreachable("nobody is there; start it")
        yield (Member("a", "10.0.0.1:7411"),)
        closing.wait()


def test_routers_that_lose_a_directory_together_do_not_ask_it_again_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "FOLLOW_REST_S", 0.002)
    routers = [random.Random(seed) for seed in range(5)]  # noqa: S311 - a seed replays it
    rests: list[list[float]] = [[] for _ in routers]
    told: list[tuple[Member, ...]] = []
    failed: list[HiSparseError] = []

    def drawing(router: int) -> float:
        rests[router].append(routers[router].random())
        return rests[router][-1]

    followers = [
        following.Follower(Failing(3), told.append, failed.append, chance=lambda router=router: drawing(router))
        for router in range(5)
    ]
    until(lambda: len(told) == 5)
    for follower in followers:
        follower.close()
    assert len(failed) == 15
    assert [len(drawn) for drawn in rests] == [3] * 5, "each rest is drawn"
    assert len({tuple(drawn) for drawn in rests}) == 5
