"""When a node's status is written. No I/O and no clock: times are seconds of the caller's monotonic one.

::

    never written, another state or epoch ─► at once ─┐
    5 % of a pool, of what fits or of the grant ──────┤─► one token of a bucket ─► write
    refresh_s ± 20 % since the last one ──────────────┘       a change leaves the last token for a state

Nodes that started together write at different times, because each draws its own.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from hisparse_svc.kube.objects import Condition
    from hisparse_svc.rpc.values import Capacity

REFRESH_S = 20.0
"""Between two writes where nothing changes much."""
SHORTEST_REFRESH_S, LONGEST_REFRESH_S = 5.0, 300.0
JITTER = 0.2
"""Share of a refresh by which it comes earlier or later."""
TOKEN_S = 5.0
"""One write in so long, on average, whatever changes."""
BURST = 3
"""Writes that may come at once."""
SHARE = 20
"""A change of one part in so many, 5 %, is written at once."""


class Pace:
    """When to write, and what was written.

    Args:
        refresh_s: Between two writes where nothing changes much.
        chance: Gives numbers from 0 to 1.
    """

    def __init__(self, refresh_s: float = REFRESH_S, *, chance: Callable[[], float] = random.random) -> None:
        self._refresh_s, self._chance = refresh_s, chance
        self.token_s: float = min(TOKEN_S, refresh_s / 2)
        self._tokens: float = BURST
        self._counted_at = 0.0
        self._written: Condition | None = None
        self._refresh_at = 0.0

    def due_at(self, seen: Condition, now: float) -> float:
        """Give when this is to be written: now or earlier where it is time."""
        if self._written is None or is_another(self._written, seen):
            return self._when(1, now)
        if moved(self._written.capacity, seen.capacity):
            return min(self._refresh_at, self._when(2, now))
        return self._refresh_at

    def written(self, seen: Condition, now: float) -> None:
        """It is written, or was tried to be."""
        self._tokens = max(self._count(now) - 1, 0.0)
        self._counted_at = now
        self._written = seen
        self._refresh_at = now + self._refresh_s * (1 - JITTER + 2 * JITTER * self._chance())

    def forget(self) -> None:
        """What was written is there no more: write it again as soon as may be."""
        self._written = None

    def _count(self, now: float) -> float:
        return min(self._tokens + (now - self._counted_at) / self.token_s, float(BURST))

    def _when(self, tokens: int, now: float) -> float:
        return now + max(tokens - self._count(now), 0.0) * self.token_s


def is_another(before: Condition, after: Condition) -> bool:
    """Whether it is another state, another generation of the pool, or the first word after none."""
    if before.state != after.state or before.info != after.info:
        return True
    epochs = [None if seen.capacity is None else seen.capacity.epoch for seen in (before, after)]
    return epochs[0] != epochs[1]


def moved(before: Capacity | None, after: Capacity | None) -> bool:
    """Whether 5 % of a pool, of how many fit, or of the largest grant came or went."""
    if before is None or after is None:
        return before is not after
    rooms = [{pool.name: _room(seen, pool.name) for pool in seen.pools} for seen in (before, after)]
    counts = [{fit.tokens: fit.count for fit in seen.fits} for seen in (before, after)]
    if rooms[0].keys() != rooms[1].keys() or counts[0].keys() != counts[1].keys():
        return True
    most_tokens = max(before.max_request_tokens, after.max_request_tokens)
    return (
        any(_far(room, rooms[1][name][0], max(total, rooms[1][name][1])) for name, (room, total) in rooms[0].items())
        or any(_far(count, counts[1][tokens], max(count, counts[1][tokens])) for tokens, count in counts[0].items())
        or _far(before.largest_grant_tokens, after.largest_grant_tokens, most_tokens)
    )


def _far(before: int, after: int, whole: int) -> bool:
    return before != after and abs(before - after) * SHARE >= whole


def _room(seen: Capacity, name: str) -> tuple[int, int]:
    """What could be granted of a pool, and all of it."""
    pool = seen.pool(name)
    return pool.free + pool.evictable + pool.scrubbing, pool.total
