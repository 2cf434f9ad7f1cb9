"""A synthetic stream: requests of one length that decode together, with the locality that is asked for."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.topk.lane import NEWEST_TOKENS
from hisparse_svc.topk.locality import PUBLISHED_MISSES, Locality, bands_of
from hisparse_svc.topk.recorder import Recorder

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

__all__ = ["Synthetic", "write_synthetic"]

MOST = {"context": 1 << 24, "steps": 1 << 20, "requests": 1 << 10, "layers": 1 << 10, "top_k": 1 << 15, "seed": 1 << 62}


@dataclass(frozen=True, slots=True)
class Synthetic:
    """What a synthetic stream follows from.

    Attributes:
        context: Tokens of each request before its first step.
        steps: Steps, each of which adds a token.
        requests: Number of requests.
        layers: Number of layers that have an index, each with picks of its own.
        top_k: Picks of each step.
        misses: Miss share of LRU, newest picks among the hits, by hot rows.
        seed: Seed.
    """

    context: int = 65_536
    steps: int = 200
    requests: int = 1
    layers: int = 1
    top_k: int = 2048
    misses: dict[int, float] = field(default_factory=lambda: dict(PUBLISHED_MISSES))
    seed: int = 0

    def __post_init__(self) -> None:
        """Check it.

        Raises:
            InvalidInput: With every number that breaks a rule.
        """
        if problems := list(self._problems()):
            raise InvalidInput(problems)

    def source(self) -> dict[str, Any]:
        """Give it as plain data."""
        return asdict(self)

    def _problems(self) -> Iterator[Problem]:
        for name, most in MOST.items():
            value, least = getattr(self, name), 0 if name == "seed" else 1
            if not least <= value <= most:
                yield Problem(name, str(value), f"must be {least} to {most}", "give a number in that range")
        if self.context < 2 * self.top_k or self.top_k <= NEWEST_TOKENS:
            rule = f"must be at least twice the top-k, {self.top_k}, and that above {NEWEST_TOKENS}"
            yield Problem("context", str(self.context), rule, "give a longer context, or another top-k")
        rows, shares = list(self.misses), list(self.misses.values())
        ascending = rows == sorted(set(rows)) and all(self.top_k <= row <= MOST["context"] for row in rows)
        falling = shares == sorted(set(shares), reverse=True) and all(0 < share < 1 for share in shares)
        if len(rows) < 2 or not ascending or not falling:
            told = ",".join(f"{row}:{share:g}" for row, share in self.misses.items())
            rule = (
                f"must be at least two ROWS:SHARE, rows rising from the top-k, {self.top_k}, shares falling from 1 to 0"
            )
            yield Problem("misses", told or "empty", rule, "give for instance 4096:0.13,8192:0.07")
        elif self.context >= 2 * self.top_k > 2 * NEWEST_TOKENS:
            bands = bands_of(self.context, self.top_k, self.misses, NEWEST_TOKENS)
            for low, high, picks in bands:
                if not 0 <= picks <= high - low:
                    value, rule = f"{picks} picks", f"cannot be drawn between {low} and {high} rows"
                    yield Problem("misses", value, rule, "let the shares fall more evenly")


def write_synthetic(
    path: str | os.PathLike[str], wanted: Synthetic, report: Callable[[int], None] = lambda _: None
) -> None:
    """Write the stream: in each step all of the newest page, and the rest of the top-k by `Locality`.

    Args:
        path: The file.
        wanted: What it follows from.
        report: Is told the steps done.
    """
    names = [f"request-{number}" for number in range(wanted.requests)]
    source = {"generator": "hisparse_svc.topk.Locality", **wanted.source()}
    lanes = wanted.requests * wanted.layers
    locality = Locality(wanted.context, lanes, top_k=wanted.top_k, misses=wanted.misses, seed=wanted.seed)
    with Recorder(path, layers=range(wanted.layers), top_k=wanted.top_k, model="synthetic", source=source) as recorder:
        for name in names:
            recorder.join(name, wanted.context)
        for step in range(wanted.steps):
            length = wanted.context + step + 1
            start = max(length - NEWEST_TOKENS, wanted.context)
            newest = np.arange(start, length, dtype=np.int32)
            for lane in range(lanes):
                if start > wanted.context:
                    locality.grow(lane, start - 1)
                picks = np.concatenate([newest, locality.step(lane, len(newest))])
                recorder.record(step, lane % wanted.layers, names[lane // wanted.layers], picks)
            report(step + 1)
