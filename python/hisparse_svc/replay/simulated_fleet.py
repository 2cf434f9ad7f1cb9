"""Fleets in virtual time: sizes × ages of views × rules, played seed by seed.

::

    Wanted ── runs() ──► SimulatedFleet each (checked before any is played) ── play ──► rows of one document
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hisparse_svc._core import SimulatedFleet
from hisparse_svc.errors import InvalidInput, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hisparse_svc._core import Trace

DEFAULTS: dict[str, Any] = SimulatedFleet.defaults()
"""What a run plays that is told nothing; `rules` are those that the documentation compares."""

MOST_RUNS = 10_000
"""Runs of one document: a table that is longer is made in parts."""

KEY = ("nodes", "staleness_s", "policy", "choices", "seed")
"""What tells the runs of one table apart."""

COMMON = (
    "routers",
    "load_milli",
    "warm_s",
    "measured_s",
    "deaths_milli",
    "slow_milli",
    "bursts",
    "seats",
    "host_pages",
    "patience_s",
)
"""What they have in common."""


@dataclass(frozen=True)
class Wanted:
    """What to play. Each run is one of `nodes` × `staleness_s` × `rules` × `seeds`.

    Attributes:
        nodes: Sizes of the fleet.
        staleness_s: Ages of what routers see of a node, in seconds.
        rules: A policy and how many fitting nodes it compares.
        seeds: Each gives other arrivals, lengths, deaths and slow nodes.
        routers: Routers; each sends an equal part of the requests.
        load_milli: Thousandths of what the fleet holds that the requests take on average.
        warm_s: Seconds before requests are counted.
        measured_s: Seconds in which they are.
        deaths_milli: Thousandths of the nodes that die once, half of them without closing their connections.
        slow_milli: Thousandths of the nodes that answer up to 1.4 s late.
        bursts: Whether a quarter of the requests comes in a tenth of the time.
        seats: Seats of a node.
        host_pages: Host pages of a node.
        patience_s: Seconds a request waits for room.
    """

    nodes: tuple[int, ...] = (100,)
    staleness_s: tuple[float, ...] = (0.0, 0.5, 2.0, 5.0)
    rules: tuple[tuple[str, int], ...] = field(default_factory=lambda: tuple(map(tuple, DEFAULTS["rules"])))
    seeds: tuple[int, ...] = (1,)
    routers: int = DEFAULTS["routers"]
    load_milli: int = DEFAULTS["load_milli"]
    warm_s: float = DEFAULTS["warm_s"]
    measured_s: float = DEFAULTS["measured_s"]
    deaths_milli: int = DEFAULTS["deaths_milli"]
    slow_milli: int = DEFAULTS["slow_milli"]
    bursts: bool = True
    seats: int = DEFAULTS["seats"]
    host_pages: int = DEFAULTS["host_pages"]
    patience_s: float = DEFAULTS["patience_s"]

    def common(self) -> dict[str, Any]:
        """Give what all runs have in common."""
        return {name: getattr(self, name) for name in COMMON}

    def keys(self) -> Iterator[dict[str, Any]]:
        """Give what each run has of its own."""
        for nodes, staleness_s, (policy, choices), seed in itertools.product(
            self.nodes, self.staleness_s, self.rules, self.seeds
        ):
            yield dict(zip(KEY, (nodes, staleness_s, policy, choices, seed), strict=True))

    def count(self) -> int:
        """Give the number of runs."""
        return len(self.nodes) * len(self.staleness_s) * len(self.rules) * len(self.seeds)

    def check(self, trace: Trace | None = None) -> None:
        """Refuse what could not be played, before anything is.

        Raises:
            InvalidInput: Every value that is out of range, once.
        """
        count = self.count()
        if not 1 <= count <= MOST_RUNS:
            remedy = "give at least one of each list" if count == 0 else "play it in parts"
            raise InvalidInput([Problem("runs", f"{count:,}", f"must be from 1 to {MOST_RUNS:,}", remedy)])
        problems: list[Problem] = []
        for key in self.keys():
            try:
                fleet = SimulatedFleet(**key, **self.common())
                if trace is not None:
                    fleet.check(trace)
            except InvalidInput as found:
                problems += [problem for problem in found.problems if problem not in problems]
        if problems:
            raise InvalidInput(problems)


def play(
    wanted: Wanted,
    trace: Trace,
    progress: Callable[[float], None] | None = None,
    known: list[dict[str, Any]] | None = None,
) -> Iterator[dict[str, Any]]:
    """Play each run that is not among `known` rows, and give its row.

    A row is what it played, `goodput` (share of the tokens granted), `attempts_per_admit` and the counts of
    `hisparse_sim::fleet::Report`. `progress` is told how many runs are done, parts of one included.

    Raises:
        InvalidInput: Every value that is out of range, before the first run.
    """
    wanted.check(trace)
    common = wanted.common()
    played = {tuple(row[name] for name in (*KEY, *COMMON)) for row in known or []}
    longest = wanted.warm_s + wanted.measured_s + wanted.patience_s
    for done, key in enumerate(wanted.keys()):
        if (*key.values(), *common.values()) in played:
            continue
        part = None if progress is None else _part(progress, done, longest)
        yield {**key, **common, **SimulatedFleet(**key, **common).play(trace, part)}


def _part(progress: Callable[[float], None], done: int, longest: float) -> Callable[[float], None]:
    return lambda seconds: progress(done + min(seconds / longest, 1.0))
