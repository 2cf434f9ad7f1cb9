"""What a stream holds: the picks of one request in one layer, in one step and in all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["NEWEST_TOKENS", "Lane", "Picks"]

NEWEST_TOKENS = 56
"""Tokens behind the end of a request that the newest page serves (`kernels.geometry`: NEWEST_TOKENS)."""


@dataclass(frozen=True, slots=True)
class Picks:
    """Picks of one request in one layer and step.

    Attributes:
        step: The step.
        request: Number of the request in the stream.
        layer: Index of the layer in the stream's list.
        length: Tokens of the request in this step, the one just written included.
        tokens: What was picked, ascending, each once: `i32 [picks]`.
    """

    step: int
    request: int
    layer: int
    length: int
    tokens: Any


@dataclass(slots=True)
class Lane:
    """All steps of one request in one layer.

    Attributes:
        request: Its name.
        layer: The model's number of the layer.
        joined_tokens: Tokens it had before its first step, all of them in host memory.
        steps: Its steps, ascending.
        lengths: Tokens it has in each.
        picks: What it picked in each, ascending.
    """

    request: str
    layer: int
    joined_tokens: int
    steps: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    picks: list[Any] = field(default_factory=list)

    def older(self) -> list[Any]:
        """Give each step's picks without those that the newest page serves, which no policy sees."""
        found = []
        for length, picks in zip(self.lengths, self.picks, strict=True):
            start = max(length - NEWEST_TOKENS, self.joined_tokens)
            found.append(picks[: int(picks.searchsorted(start))])
        return found
