"""The policies that numpy can run a step at a time, and the list of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hisparse_svc.simulate.cache import Policy, QueuePolicy
from hisparse_svc.simulate.lists import Arc, S3Fifo

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["POLICIES", "Belady", "Policy", "make"]

NEVER = np.iinfo(np.int64).max


class Lru(QueuePolicy):
    """Least recently used goes. As the hot cache does it: hits keep the order they had, misses rank above them."""

    name = "lru"

    def replace(self, wanted: Any, hits: Any, missing: Any, evicted: int) -> Any:
        """Rewrite the queue as stale, hits, misses."""
        del wanted, hits
        picked = self.picked[self.queue]
        stale = self.queue[~picked]
        self.queue = np.concatenate([stale[evicted:], self.queue[picked], missing])
        return stale[:evicted]


class Fifo(QueuePolicy):
    """First in, first out; a pick of this step is passed over, and keeps its place."""

    name = "fifo"

    def replace(self, wanted: Any, hits: Any, missing: Any, evicted: int) -> Any:
        """Let the oldest go."""
        del wanted, hits
        return self.leave(self.free()[:evicted], missing)


class Random(QueuePolicy):
    """Any may go, with equal chances."""

    name = "random"

    def replace(self, wanted: Any, hits: Any, missing: Any, evicted: int) -> Any:
        """Draw who goes."""
        del wanted, hits
        return self.leave(self.random.choice(self.free(), evicted, replace=False), missing)


class Clock(Policy):
    """Second chance: a hand goes round, takes rows whose bit is clear and clears those it passes.

    A hit sets the bit, an arrival does not. A pick of this step is passed over with its bit as it is.
    """

    name = "clock"

    def __init__(self, tokens: int, rows: int, seed: int = 0) -> None:
        super().__init__(tokens, rows, seed)
        self.ring = np.zeros(0, dtype=np.int32)
        self.used = np.zeros(tokens, dtype=bool)
        self.hand = 0

    def replace(self, wanted: Any, hits: Any, missing: Any, evicted: int) -> Any:
        """Turn the hand as far as needed, at most twice round."""
        del wanted
        self.used[hits] = True
        order = np.roll(np.arange(len(self.ring)), -self.hand)
        held = self.ring[order]
        loose = ~self.picked[held]
        first = np.flatnonzero(loose & ~self.used[held])
        if len(first) >= evicted:
            taken = first[:evicted]
            passed = held[: taken[-1] + 1] if evicted else held[:0]
        else:
            second = np.flatnonzero(loose & self.used[held])[: evicted - len(first)]
            taken, passed = np.concatenate([first, second]), held
        self.used[passed[~self.picked[passed]]] = False
        victims, places = held[taken], order[taken]
        self.used[missing] = False
        fresh = len(missing) - evicted
        self.ring = np.concatenate([self.ring, missing[:fresh]])
        self.ring[places] = missing[fresh:]
        if evicted:
            self.hand = (int(places[-1]) + 1) % self.rows
        return victims


class Slru(Policy):
    """Segmented LRU: arrivals are on probation, a second pick protects, and at most 80 % of the rows are protected.

    Within a step the protected hits are touched first, then those on probation, each in the order they had.
    """

    name = "slru"

    def __init__(self, tokens: int, rows: int, seed: int = 0) -> None:
        super().__init__(tokens, rows, seed)
        self.most_protected = rows * 4 // 5
        self.probation = self.protected = np.zeros(0, dtype=np.int32)

    def replace(self, wanted: Any, hits: Any, missing: Any, evicted: int) -> Any:
        """Protect hits, demote what no longer fits, and let the least recent on probation go."""
        del wanted, hits
        again, on_probation = self.picked[self.protected], self.picked[self.probation]
        protected = np.concatenate(
            [self.protected[~again], self.protected[again], self.probation[on_probation]],
        )
        over = max(0, len(protected) - self.most_protected)
        probation = np.concatenate([self.probation[~on_probation], protected[:over]])
        protected = protected[over:]
        places = np.flatnonzero(~self.picked[probation])[:evicted]
        more = np.flatnonzero(~self.picked[protected])[: evicted - len(places)]
        victims = np.concatenate([probation[places], protected[more]])
        self.probation = np.concatenate([np.delete(probation, places), missing])
        self.protected = np.delete(protected, more)
        return victims


class Lru2(Lru):
    """The row goes whose last pick but one is longest ago, then as LRU. Picks of rows that left are remembered."""

    name = "lru-2"

    def __init__(self, tokens: int, rows: int, seed: int = 0) -> None:
        super().__init__(tokens, rows, seed)
        self.last = np.full(tokens, -1, dtype=np.int64)
        self.before = np.full(tokens, -1, dtype=np.int64)

    def replace(self, wanted: Any, hits: Any, missing: Any, evicted: int) -> Any:
        """Keep the queue as LRU does, and choose by the last pick but one."""
        self.before[wanted] = self.last[wanted]
        self.last[wanted] = self.now
        free = self.free()
        going = self.queue[free[np.argsort(self.before[self.queue[free]], kind="stable")[:evicted]]]
        gone = np.isin(self.queue, going, assume_unique=True)
        self.queue = self.queue[~gone]
        super().replace(wanted, hits, missing, 0)
        return going


class Belady(QueuePolicy):
    """The row goes that is picked again last, or never: no policy misses less. It needs the future."""

    name = "belady"

    def __init__(self, tokens: int, rows: int, seed: int = 0, *, future: Sequence[Any] = ()) -> None:
        super().__init__(tokens, rows, seed)
        following = np.full(tokens, NEVER, dtype=np.int64)
        self.uses: list[Any] = []
        for step in range(len(future) - 1, -1, -1):
            self.uses.append(following[future[step]])
            following[future[step]] = step
        self.uses.reverse()
        self.following = following

    def replace(self, wanted: Any, hits: Any, missing: Any, evicted: int) -> Any:
        """Look up when each row is picked again."""
        del hits
        self.following[wanted] = self.uses[self.now]
        free = self.free()
        return self.leave(free[np.argsort(-self.following[self.queue[free]], kind="stable")[:evicted]], missing)


POLICIES: dict[str, type[Policy]] = {
    kind.name: kind for kind in (Lru, Fifo, Random, Clock, Slru, Lru2, Arc, S3Fifo, Belady)
}
"""Every policy by its name."""


def make(name: str, steps: Sequence[Any], rows: int, seed: int = 0) -> Policy:
    """Make a policy for the picks of a lane."""
    tokens = max((int(picks[-1]) + 1 for picks in steps if len(picks)), default=1)
    if name == Belady.name:
        return Belady(tokens, rows, seed, future=steps)
    return POLICIES[name](tokens, rows, seed)
