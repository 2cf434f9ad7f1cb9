"""ARC and S3-FIFO: policies that remember what left, a row at a time.

Hits of a step are noted first, in the order of the picks, then the misses are taken in, in their order.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

import numpy as np

from hisparse_svc.simulate.cache import Policy

__all__ = ["Arc", "S3Fifo"]


class Arc(Policy):
    """Adaptive replacement (Megiddo and Modha, 2003).

    ::

        seen once     [ ghosts │ rows ]      seen again    [ ghosts │ rows ]
                        least … most recent

    Rows of both lists: at most `rows`, `target` of them seen once, which ghosts that come back raise and lower.

    Where the list that should give a row has only picks of this step, the other one gives it.
    """

    name = "arc"

    def __init__(self, tokens: int, rows: int, seed: int = 0) -> None:
        super().__init__(tokens, rows, seed)
        self.once: OrderedDict[int, None] = OrderedDict()
        self.again: OrderedDict[int, None] = OrderedDict()
        self.once_gone: OrderedDict[int, None] = OrderedDict()
        self.again_gone: OrderedDict[int, None] = OrderedDict()
        self.target = 0.0
        self.victims: list[int] = []

    def replace(self, wanted: Any, hits: Any, missing: Any, evicted: int) -> Any:
        """Move the hits, then take in each miss as the paper says."""
        del wanted, evicted
        for token in hits.tolist():
            self.once.pop(token, None)
            self.again[token] = None
            self.again.move_to_end(token)
        self.victims = []
        for token in missing.tolist():
            self._take_in(token)
        return np.array(self.victims, dtype=np.int64)

    def _take_in(self, token: int) -> None:
        if token in self.once_gone:
            self.target = min(self.rows, self.target + max(1.0, len(self.again_gone) / len(self.once_gone)))
            self._give(favour_again=False)
            del self.once_gone[token]
            self.again[token] = None
        elif token in self.again_gone:
            self.target = max(0.0, self.target - max(1.0, len(self.once_gone) / len(self.again_gone)))
            self._give(favour_again=True)
            del self.again_gone[token]
            self.again[token] = None
        else:
            seen_once = len(self.once) + len(self.once_gone)
            if seen_once == self.rows:
                if self.once_gone:
                    self.once_gone.popitem(last=False)
                    self._give(favour_again=False)
                else:
                    self.victims.append(self.once.popitem(last=False)[0])
            else:
                if seen_once + len(self.again) + len(self.again_gone) == 2 * self.rows:
                    self.again_gone.popitem(last=False)
                self._give(favour_again=False)
            self.once[token] = None

    def _give(self, *, favour_again: bool) -> None:
        """Let a row go, where all are taken, and remember it."""
        if len(self.once) + len(self.again) < self.rows:
            return
        full = len(self.once) > self.target or (favour_again and len(self.once) == self.target)
        from_once = bool(self.once) and full
        oldest = next(iter(self.once if from_once else self.again), None)
        if oldest is None or self.picked[oldest]:
            from_once = not from_once
        rows, gone = (self.once, self.once_gone) if from_once else (self.again, self.again_gone)
        victim, _ = rows.popitem(last=False)
        gone[victim] = None
        self.victims.append(victim)


class S3Fifo(Policy):
    """Three queues (Yang and others, 2023).

    ::

        arrivals ──► small, 10 % of the rows ──picked twice since──► main ──► picked since: once more round, else out
                           └─ else out, remembered by number ──► back within 90 % of the rows: straight to main

    Picks are counted up to 3. A pick of this step at the end of a queue goes round again, with its count as it is;
    while the small queue has nothing else, the main one gives.
    """

    name = "s3-fifo"

    NOWHERE, SMALL, MAIN = 0, 1, 2

    def __init__(self, tokens: int, rows: int, seed: int = 0) -> None:
        super().__init__(tokens, rows, seed)
        self.least_small = max(1, rows // 10)
        self.most_ghosts = rows - self.least_small
        self.small: deque[int] = deque()
        self.main: deque[int] = deque()
        self.ghosts: OrderedDict[int, None] = OrderedDict()
        self.where = np.zeros(tokens, dtype=np.int8)
        self.count = np.zeros(tokens, dtype=np.int8)
        self.loose = {self.SMALL: 0, self.MAIN: 0}

    def replace(self, wanted: Any, hits: Any, missing: Any, evicted: int) -> Any:
        """Count the hits, then let rows go and take misses in, one by one."""
        del wanted
        self.count[hits] = np.minimum(self.count[hits] + 1, 3)
        in_small = int((self.where[hits] == self.SMALL).sum())
        self.loose = {self.SMALL: len(self.small) - in_small, self.MAIN: len(self.main) - len(hits) + in_small}
        victims = []
        for number, token in enumerate(missing.tolist()):
            if number >= len(missing) - evicted:
                victims.append(self._let_go())
            known = token in self.ghosts
            if known:
                del self.ghosts[token]
            (self.main if known else self.small).append(token)
            self.where[token] = self.MAIN if known else self.SMALL
            self.count[token] = 0
        return np.array(victims, dtype=np.int64)

    def _let_go(self) -> int:
        while True:
            small = self.loose[self.SMALL] and (len(self.small) >= self.least_small or not self.loose[self.MAIN])
            victim = self._from_small() if small else self._from_main()
            if victim is not None:
                self.where[victim] = self.NOWHERE
                return victim

    def _from_small(self) -> int | None:
        token = self.small.popleft()
        picked = bool(self.picked[token])
        if self.count[token] > 1:
            self.main.append(token)
            self.where[token], self.count[token] = self.MAIN, 0
            if not picked:
                self.loose[self.SMALL] -= 1
                self.loose[self.MAIN] += 1
            return None
        if picked:
            self.small.append(token)
            return None
        self.loose[self.SMALL] -= 1
        self.ghosts[token] = None
        if len(self.ghosts) > self.most_ghosts:
            self.ghosts.popitem(last=False)
        return token

    def _from_main(self) -> int | None:
        token = self.main.popleft()
        if self.picked[token]:
            self.main.append(token)
        elif self.count[token]:
            self.count[token] -= 1
            self.main.append(token)
        else:
            self.loose[self.MAIN] -= 1
            return token
        return None
