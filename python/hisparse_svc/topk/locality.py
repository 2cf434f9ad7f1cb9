"""Top-k streams with a given locality, from a seed.

::

    LRU stack of a lane    [ most recent │ … │ top-k │ … │ 2 × top-k │ …                              │ least recent ]
    share of the picks      1 − m(top-k)     m(top-k) − m(2 top-k)    …                     m(last edge)

`m(d)` is the share of a step's picks that lies deeper than `d` in the stack: what LRU with `d` rows misses. It is given
at some depths, and is a power of the depth between and beyond them. Between two edges the picks are drawn evenly. A
token that has just left the newest page has never been among the hot rows, so it enters at the bottom.

The picks of a step lie in the stack in a random order, in the hot cache hits before arrivals. So a hot cache misses a
little more than `m` where `m` is steep: 0.2 to 1.3 points of a hundred in the cases of docs/simulating.md. The model
fixes what LRU misses, and nothing else: FIFO, random and offline Belady get what follows from it.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PUBLISHED_MISSES", "Locality", "bands_of"]

PUBLISHED_MISSES = {4096: 0.13, 8192: 0.07}
"""Miss share of LRU by rows, near to what was published for a GLM-5.1 prompt of 100 K tokens (13.4 and 6.7 %)."""


WIDEST_START = 0.8
"""An edge deeper than this part of the stack is left out, so that the last band is wide enough to draw from."""


def beyond(misses: Mapping[int, float], depth: float) -> float:
    """Give the share of picks deeper than `depth`."""
    if depth <= 0:
        return 1.0
    pairs = list(itertools.pairwise(misses.items()))
    (near, some), (far, fewer) = next((pair for pair in pairs if depth <= pair[1][0]), pairs[-1])
    power = math.log(some / fewer) / math.log(far / near)
    return math.exp(min(0.0, math.log(some) - power * math.log(depth / near)))


def bands_of(tokens: int, top_k: int, misses: Mapping[int, float], newest: int = 0) -> list[tuple[int, int, int]]:
    """Give the depths a step picks between, and how many; `newest` picks go to the newest page."""
    doubled = [top_k << power for power in range(32)]
    inner = sorted({depth for depth in (*doubled, *misses) if depth < WIDEST_START * tokens})
    edges = [0, *inner, tokens]
    shares = [beyond(misses, depth) for depth in edges[:-1]] + [0.0]
    counts = [round(top_k * (above - below)) for above, below in itertools.pairwise(shares)]
    counts[0] += top_k - newest - sum(counts)
    return list(zip(edges[:-1], edges[1:], counts, strict=True))


class Locality:
    """LRU stacks of some lanes, and the picks drawn from them.

    Attributes:
        stacks: Tokens of each lane, from most to least recently picked.
        first: The stacks before the first step.
    """

    def __init__(
        self,
        tokens: int,
        streams: int,
        *,
        top_k: int,
        misses: Mapping[int, float] | None = None,
        seed: int = 0,
    ) -> None:
        """Put the tokens in a random order.

        Args:
            tokens: Tokens of each lane that are not in the newest page; at least `top_k`.
            streams: Number of lanes.
            top_k: Picks of a step.
            misses: Miss share of LRU by rows: rows ascending, shares falling, each above 0.
            seed: What the picks follow from, with the numbers above.
        """
        self.top_k = top_k
        self.misses = dict(sorted((PUBLISHED_MISSES if misses is None else misses).items()))
        self.random = np.random.default_rng(seed)
        self.stacks = [self.random.permutation(tokens).astype(np.int32) for _ in range(streams)]
        self.first = [stack.copy() for stack in self.stacks]

    def step(self, stream: int, newest: int = 0) -> Any:
        """Give the picks of one step but for `newest`, shuffled; they are the most recent ones then."""
        stack = self.stacks[stream]
        bands = bands_of(len(stack), self.top_k, self.misses, newest)
        chosen = np.concatenate([low + self.random.choice(high - low, n, replace=False) for low, high, n in bands])
        picks = stack[self.random.permutation(chosen)]
        self.stacks[stream] = np.concatenate([picks[::-1], np.delete(stack, chosen)])
        return picks

    def grow(self, stream: int, token: int) -> None:
        """Add a token that has left the newest page."""
        self.stacks[stream] = np.append(self.stacks[stream], np.int32(token))
