"""What every policy shares: a step's picks are needed all at once.

::

    picks of a step ──► hits, which stay      misses, each in the place of a row that is no pick of this step

So a policy is asked once a step, not once a pick: it learns the hits, gives as many victims as there are misses beyond
the free rows, and takes the misses in. The newest page is apart: its tokens are not among the picks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

__all__ = ["Policy", "QueuePolicy"]


class Policy(ABC):
    """Hot rows of one lane under one policy.

    Attributes:
        name: What it is called.
        rows: How many rows there are, at least the picks of a step.
        resident: Whether each token is hot.
        picked: Whether each token is picked in this step; only true within `step`.
        now: Steps so far.
    """

    name: ClassVar[str]

    def __init__(self, tokens: int, rows: int, seed: int = 0) -> None:
        """Start empty.

        Args:
            tokens: Number of tokens there can be.
            rows: Number of rows.
            seed: For the policies that draw.
        """
        self.rows = rows
        self.resident = np.zeros(tokens, dtype=bool)
        self.picked = np.zeros(tokens, dtype=bool)
        self.now = 0
        self.held = 0
        self.random = np.random.default_rng(seed)

    def step(self, wanted: Any) -> Any:
        """Take the picks of a step, each once; give those that missed, in their order."""
        self.picked[wanted] = True
        hot = self.resident[wanted]
        hits, missing = wanted[hot], wanted[~hot]
        evicted = max(0, self.held + len(missing) - self.rows)
        victims = self.replace(wanted, hits, missing, evicted)
        self.resident[victims] = False
        self.resident[missing] = True
        self.held += len(missing) - evicted
        self.picked[wanted] = False
        self.now += 1
        return missing

    @abstractmethod
    def replace(self, wanted: Any, hits: Any, missing: Any, evicted: int) -> Any:
        """Note the hits, choose `evicted` hot rows that are not picked, and take the misses in."""


class QueuePolicy(Policy):
    """A policy that keeps its rows in one order, and says only which go.

    Attributes:
        queue: The hot tokens, oldest first.
    """

    def __init__(self, tokens: int, rows: int, seed: int = 0) -> None:
        super().__init__(tokens, rows, seed)
        self.queue = np.zeros(0, dtype=np.int32)

    def leave(self, places: Any, missing: Any) -> Any:
        """Take the tokens at some places of the queue out, and the misses in at its end; give what left."""
        victims = self.queue[places]
        self.queue = np.concatenate([np.delete(self.queue, places), missing])
        return victims

    def free(self) -> Any:
        """Give the places of the queue whose tokens may go, oldest first."""
        return np.flatnonzero(~self.picked[self.queue])
