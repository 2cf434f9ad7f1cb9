"""The figures of `simulate-fleet`: medians over the seeds, as its table and its plots show them."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def medians(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the seeds of each fleet, age and rule together."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        fleet = ("nodes", "routers", "load_milli", "deaths_milli", "slow_milli", "bursts", "warm_s", "measured_s")
        same = tuple(
            row[name] for name in (*fleet, "seats", "host_pages", "patience_s", "policy", "choices", "staleness_s")
        )
        groups.setdefault(same, []).append(row)
    figures: dict[str, Callable[[dict[str, Any]], float]] = {
        "goodput": lambda row: row["goodput"],
        "attempts_per_admit": lambda row: row["attempts_per_admit"],
        "wait_p50_s": lambda row: row["wait"]["p50"] / 1_000,
        "wait_p99_s": lambda row: row["wait"]["p99"] / 1_000,
        "imbalance": lambda row: row["imbalance_milli"] / 1_000,
    }
    return [
        {
            **{
                name: group[0][name]
                for name in ("nodes", "staleness_s", "policy", "choices", "load_milli", "measured_s")
            },
            "seeds": len(group),
            **{name: statistics.median(of(row) for row in group) for name, of in figures.items()},
            "overcommit": sum(row["overcommit"] for row in group),
            "two_leases": sum(row["two_leases"] for row in group),
        }
        for group in groups.values()
    ]
