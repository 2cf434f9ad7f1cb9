"""One simulation as a document: each policy with each number of hot rows, by layer and by step."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.simulate.link import Link
from hisparse_svc.simulate.policies import POLICIES, make

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hisparse_svc.topk import Lane, Stream

__all__ = ["Wanted", "simulate"]

MOST_HOT_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to simulate.

    Attributes:
        hot_rows: Numbers of hot rows, each at least the top-k.
        policies: Names of policies.
        layers: The model's numbers of the layers; `None`: all of them.
        skip: Steps of each request that run and are not counted, while its rows fill.
        row_bytes: Bytes of a row.
        batch: Requests of a step, for the cost: misses are scaled to it. `None`: those of the streams.
        hide_us: Time of a layer's other work that a copy can run beside.
        seed: For the policies that draw.
    """

    hot_rows: tuple[int, ...] = (4096, 8192)
    policies: tuple[str, ...] = tuple(POLICIES)
    layers: tuple[int, ...] | None = None
    skip: int = 0
    row_bytes: int = 656
    batch: int | None = None
    hide_us: float = 0.0
    seed: int = 0

    def problems(self, streams: Sequence[Stream]) -> Iterator[Problem]:
        """Say what does not fit the streams."""
        top_k = max(stream.top_k for stream in streams)
        for rows in self.hot_rows:
            if not top_k <= rows <= MOST_HOT_ROWS:
                rule = f"must be at least the top-k, {top_k}, and at most {MOST_HOT_ROWS}"
                yield Problem("--hot-rows", str(rows), rule, f"use {2 * top_k}")
        for name in self.policies:
            if name not in POLICIES:
                yield Problem(
                    "--policies", f'"{name}"', f"must be some of {', '.join(POLICIES)}", "leave it out for all"
                )
        numbers = (("--row-bytes", self.row_bytes, 1), ("--batch", 1 if self.batch is None else self.batch, 1))
        for flag, value, least in (*numbers, ("--skip", self.skip, 0), ("--seed", self.seed, 0)):
            if not least <= value <= 1 << 20:
                yield Problem(flag, str(value), f"must be {least} to {1 << 20}", "give a number in that range")
        if not 0 <= self.hide_us <= 1e9:
            yield Problem("--hide-us", str(self.hide_us), "must be 0 to 1e9", "give microseconds")


@dataclass(slots=True)
class _Count:
    """Misses and picks that add up over lanes."""

    picks: int = 0
    misses: int = 0

    def add(self, picks: int, misses: int) -> None:
        self.picks += picks
        self.misses += misses

    @property
    def share(self) -> float:
        return round(self.misses / self.picks, 6) if self.picks else 0.0


@dataclass(slots=True)
class _Result:
    total: _Count = field(default_factory=_Count)
    layers: dict[int, _Count] = field(default_factory=lambda: defaultdict(_Count))
    steps: dict[int, _Count] = field(default_factory=lambda: defaultdict(_Count))
    rows: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))


def simulate(
    streams: Sequence[Stream], wanted: Wanted, report: Callable[[int], None] = lambda _: None
) -> dict[str, Any]:
    """Run every policy with every number of hot rows over all lanes.

    Args:
        streams: At least one; their requests are taken as requests of one batch, layers of one number as one layer.
        wanted: What to simulate.
        report: Is told the lanes done, over all policies.

    Returns:
        The document that `hisparse-svc simulate --json` prints.

    Raises:
        InvalidInput: What is wanted does not fit the streams, or they are damaged or hold nothing to count.
    """
    if problems := list(wanted.problems(streams)):
        raise InvalidInput(problems)
    lanes = [lane for stream in streams for lane in stream.lanes(wanted.layers)]
    if not any(len(lane.steps) > wanted.skip for lane in lanes):
        rule = "leaves no step to count"
        raise InvalidInput([Problem("--skip", str(wanted.skip), rule, "skip fewer, or give longer streams")])
    requests = sum(len(stream.requests) for stream in streams)
    contexts = [tokens for stream in streams for _, tokens in stream.requests]
    older = [lane.older() for lane in lanes]
    batch = wanted.batch or requests
    link = Link(wanted.row_bytes, batch, round(sum(contexts) / len(contexts)))
    results, done = [], 0
    for hot_rows in wanted.hot_rows:
        for name in wanted.policies:
            result = _Result()
            for number, (lane, steps) in enumerate(zip(lanes, older, strict=True)):
                _run(result, lane, steps, make(name, steps, hot_rows, wanted.seed + number), wanted.skip)
                done += 1
                report(done)
            head = {"policy": name, "hot_rows": hot_rows}
            results.append(head | _figures(result) | _cost(result, link, batch / requests, wanted.hide_us))
    return {
        "files": [str(stream.path) for stream in streams],
        "models": [stream.model for stream in streams],
        "top_k": max(stream.top_k for stream in streams),
        "requests": requests,
        "layers": sorted({lane.layer for lane in lanes}),
        "steps": len({step for lane in lanes for step in lane.steps}),
        "mean_context_tokens": link.context_tokens,
        "skip": wanted.skip,
        "seed": wanted.seed,
        "row_bytes": wanted.row_bytes,
        "batch": batch,
        "hide_us": wanted.hide_us,
        "results": results,
    }


def _run(result: _Result, lane: Lane, older: Sequence[Any], policy: Any, skip: int) -> None:
    for number, (step, picks, wanted) in enumerate(zip(lane.steps, lane.picks, older, strict=True)):
        misses = len(policy.step(wanted))
        if number < skip:
            continue
        result.total.add(len(picks), misses)
        result.layers[lane.layer].add(len(picks), misses)
        result.steps[step].add(len(picks), misses)
        result.rows[step, lane.layer] += misses


def _figures(result: _Result) -> dict[str, Any]:
    return {
        "picks": result.total.picks,
        "misses": result.total.misses,
        "miss_share": result.total.share,
        "by_layer": {str(layer): count.share for layer, count in sorted(result.layers.items())},
        "by_step": {str(step): count.share for step, count in sorted(result.steps.items())},
    }


def _cost(result: _Result, link: Link, scale: float, hide_us: float) -> dict[str, Any]:
    """Give bytes and time of a step: the layers of the streams, one after another."""
    steps: defaultdict[int, Any] = defaultdict(lambda: np.zeros(3))
    for (step, _), misses in result.rows.items():
        us = link.swap_in_us(misses * scale)
        steps[step] += (misses * scale * link.row_bytes, us, max(0.0, us - hide_us))
    moved, took, exposed = np.array(list(steps.values())).T
    return {
        "bytes_per_step": round(float(moved.mean())),
        "most_bytes_per_step": round(float(moved.max())),
        "swap_in_us_per_step": round(float(took.mean()), 1),
        "exposed_us_per_step": round(float(exposed.mean()), 1),
    }
