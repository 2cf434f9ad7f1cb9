"""The policies again, slow and obvious: plain lists, one token at a time, by their definitions."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

Model = Callable[[set[int], list[int]], list[int]]
"""Takes the picks of a step; gives those that missed."""


class Slow:
    """`rows` hot tokens. A step notes its hits, then takes in its misses; none of its picks leaves in it."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.step_number = -1
        self.picks: list[int] = []

    def hot(self) -> list[int]:
        raise NotImplementedError

    def hit_order(self, hits: list[int]) -> list[int]:
        return hits

    def hit(self, token: int) -> None:
        pass

    def take_in(self, token: int) -> None:
        raise NotImplementedError

    def step(self, picks: list[int]) -> list[int]:
        self.step_number += 1
        self.picks = picks
        held = self.hot()
        hits, missing = [t for t in picks if t in held], [t for t in picks if t not in held]
        for token in self.hit_order(hits):
            self.hit(token)
        for token in missing:
            self.take_in(token)
        return missing


class Listed(Slow):
    """Hot tokens in one list; `victim` chooses among those that are no picks."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.list: list[int] = []

    def hot(self) -> list[int]:
        return list(self.list)

    def victim(self, free: list[int]) -> int:
        return free[0]

    def take_in(self, token: int) -> None:
        if len(self.list) == self.rows:
            self.list.remove(self.victim([t for t in self.list if t not in self.picks]))
        self.list.append(token)


class SlowLru(Listed):
    def hit_order(self, hits: list[int]) -> list[int]:
        return [t for t in self.list if t in hits]

    def hit(self, token: int) -> None:
        self.list.remove(token)
        self.list.append(token)


class SlowFifo(Listed):
    pass


class SlowLru2(SlowLru):
    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.history: dict[int, list[int]] = {}

    def step(self, picks: list[int]) -> list[int]:
        for token in picks:
            self.history.setdefault(token, []).append(self.step_number + 1)
        return super().step(picks)

    def victim(self, free: list[int]) -> int:
        return min(free, key=lambda t: self.history[t][-2] if len(self.history[t]) > 1 else -1)


class SlowBelady(Listed):
    def __init__(self, rows: int, future: Sequence[list[int]]) -> None:
        super().__init__(rows)
        self.future = future

    def victim(self, free: list[int]) -> int:
        later = range(self.step_number + 1, len(self.future))
        return max(free, key=lambda t: next((step for step in later if t in self.future[step]), 1 << 40))


class SlowClock(Slow):
    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.ring: list[int] = []
        self.used: dict[int, bool] = {}
        self.hand = 0

    def hot(self) -> list[int]:
        return list(self.ring)

    def hit(self, token: int) -> None:
        self.used[token] = True

    def take_in(self, token: int) -> None:
        self.used[token] = False
        if len(self.ring) < self.rows:
            self.ring.append(token)
            return
        while True:
            at, self.hand = self.hand, (self.hand + 1) % self.rows
            if self.ring[at] in self.picks:
                continue
            if not self.used[self.ring[at]]:
                self.ring[at] = token
                return
            self.used[self.ring[at]] = False


class SlowSlru(Slow):
    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.probation: list[int] = []
        self.protected: list[int] = []

    def hot(self) -> list[int]:
        return self.probation + self.protected

    def hit_order(self, hits: list[int]) -> list[int]:
        return [t for t in self.protected + self.probation if t in hits]

    def hit(self, token: int) -> None:
        (self.protected if token in self.protected else self.probation).remove(token)
        self.protected.append(token)
        if len(self.protected) > self.rows * 4 // 5:
            self.probation.append(self.protected.pop(0))

    def take_in(self, token: int) -> None:
        if len(self.hot()) == self.rows:
            victim = next(t for t in self.probation + self.protected if t not in self.picks)
            (self.probation if victim in self.probation else self.protected).remove(victim)
        self.probation.append(token)


class SlowArc(Slow):
    """Figure 4 of the paper, with its names: T1, T2 hold rows, B1, B2 remember them."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.t1: list[int] = []
        self.t2: list[int] = []
        self.b1: list[int] = []
        self.b2: list[int] = []
        self.p = 0.0

    def hot(self) -> list[int]:
        return self.t1 + self.t2

    def hit(self, token: int) -> None:
        (self.t1 if token in self.t1 else self.t2).remove(token)
        self.t2.append(token)

    def take_in(self, token: int) -> None:
        c = self.rows
        if token in self.b1:
            self.p = min(c, self.p + max(1.0, len(self.b2) / len(self.b1)))
            self.replace(in_b2=False)
            self.b1.remove(token)
            self.t2.append(token)
            return
        if token in self.b2:
            self.p = max(0.0, self.p - max(1.0, len(self.b1) / len(self.b2)))
            self.replace(in_b2=True)
            self.b2.remove(token)
            self.t2.append(token)
            return
        total = len(self.t1 + self.t2 + self.b1 + self.b2)
        if len(self.t1 + self.b1) == c:
            if len(self.t1) < c:
                self.b1.pop(0)
                self.replace(in_b2=False)
            else:
                assert self.t1[0] not in self.picks
                self.t1.pop(0)
        elif total >= c:
            if total == 2 * c:
                self.b2.pop(0)
            self.replace(in_b2=False)
        self.t1.append(token)

    def replace(self, *, in_b2: bool) -> None:
        if len(self.t1 + self.t2) < self.rows:
            return  # the paper's cache is full by now; ours may still be filling
        free1 = [t for t in self.t1 if t not in self.picks]
        free2 = [t for t in self.t2 if t not in self.picks]
        if (free1 and self.t1 and (len(self.t1) > self.p or (in_b2 and len(self.t1) == self.p))) or not free2:
            self.t1.remove(free1[0])
            self.b1.append(free1[0])
        else:
            self.t2.remove(free2[0])
            self.b2.append(free2[0])


class SlowS3Fifo(Slow):
    """Algorithm 1 of the paper: S, M and G; picks of the step go round."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.s: list[int] = []
        self.m: list[int] = []
        self.g: list[int] = []
        self.count: dict[int, int] = {}

    def hot(self) -> list[int]:
        return self.s + self.m

    def hit(self, token: int) -> None:
        self.count[token] = min(3, self.count[token] + 1)

    def take_in(self, token: int) -> None:
        while len(self.hot()) == self.rows:
            small = max(1, self.rows // 10)
            free_s = any(t not in self.picks for t in self.s)
            free_m = any(t not in self.picks for t in self.m)
            if free_s and (len(self.s) >= small or not free_m):
                self.evict_s(self.rows - small)
            else:
                self.evict_m()
        self.count[token] = 0
        if token in self.g:
            self.g.remove(token)
            self.m.append(token)
        else:
            self.s.append(token)

    def evict_s(self, most_ghosts: int) -> None:
        token = self.s.pop(0)
        if self.count[token] > 1:
            self.count[token] = 0
            self.m.append(token)
        elif token in self.picks:
            self.s.append(token)
        else:
            self.g.append(token)
            self.g = self.g[-most_ghosts:]

    def evict_m(self) -> None:
        token = self.m.pop(0)
        if token in self.picks:
            self.m.append(token)
        elif self.count[token] > 0:
            self.count[token] -= 1
            self.m.append(token)


SLOW = {
    "lru": SlowLru,
    "fifo": SlowFifo,
    "clock": SlowClock,
    "slru": SlowSlru,
    "lru-2": SlowLru2,
    "arc": SlowArc,
    "s3-fifo": SlowS3Fifo,
}


def least_misses(steps: Sequence[list[int]], rows: int) -> int:
    """The fewest misses any choice of victims can have, by trying all of them."""
    states = {frozenset[int](): 0}
    for picks in steps:
        after: dict[frozenset[int], int] = {}
        for hot, misses in states.items():
            cost = misses + len(set(picks) - hot)
            for kept in _choices(sorted(hot - set(picks)), len(hot | set(picks)) - rows):
                state = frozenset(kept) | frozenset(picks)
                after[state] = min(cost, after.get(state, 1 << 40))
        states = after
    return min(states.values())


def _choices(stale: list[int], leaving: int) -> list[list[int]]:
    if leaving <= 0:
        return [stale]
    return (
        [
            rest
            for at in range(len(stale))
            for rest in (stale[:at] + tail for tail in _choices(stale[at + 1 :], leaving - 1))
        ]
        if leaving <= len(stale)
        else []
    )


def random_steps(seed: int, tokens: int, top_k: int, steps: int) -> list[list[int]]:
    """Steps with some locality: part of the last picks, part of a few favourites, the rest from anywhere."""
    draw = random.Random(seed)  # noqa: S311 - a test's own numbers
    favourites = draw.sample(range(tokens), min(tokens, 2 * top_k))
    last: list[int] = []
    made = []
    for _ in range(steps):
        wanted = draw.randint(0, top_k)
        pool = [*draw.sample(last, len(last) * draw.randint(0, 2) // 2), *draw.sample(favourites, top_k)]
        pool += draw.sample(range(tokens), top_k)
        last = sorted(dict.fromkeys(pool[:wanted] if draw.random() < 0.7 else pool[-wanted:] if wanted else []))
        made.append(last)
    return made
