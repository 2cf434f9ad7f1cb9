"""What one decision of a router costs: whom to ask, out of 100 to 100,000 nodes. Only the router's own work; no call.

Usage: ``python benches/fleet_decision.py --out benches/results/fleet_decision.json`` after ``make build``.

Nodes are filled at random, one in ten is full. A decision is what `Fleet.admit` does before its call: a look at every
node, a sample of those that fit, the best of them. `rank` sorts all of them, which only `Fleet.rank` does.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import time
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from hisparse_svc import _core
from serve_load import machine

if TYPE_CHECKING:
    from collections.abc import Callable

NODES = (100, 1_000, 10_000, 100_000)
PAGES, SEATS = 50_000, 256
TOKENS = 12_000
SEED = 13


def router(count: int) -> _core.Router:
    """Make a router that has seen so many nodes."""
    dice, now = random.Random(SEED), time.monotonic()  # noqa: S311 - replays from its seed
    made = _core.Router(seed=SEED, now_s=now)
    for _ in range(count):
        full = dice.random() < 0.1
        pages, seats = (0, 0) if full else (dice.randrange(200, PAGES), dice.randrange(1, SEATS))
        made.watched(
            made.add(now),
            epoch=1,
            sequence=1,
            pools=[
                ("host_pages", pages, PAGES),
                ("seats", seats, SEATS),
                ("indexer_tokens", pages * 64, PAGES * 64),
                ("request_slots", seats, 1_024),
            ],
            largest_grant_tokens=pages * 64,
            max_request_tokens=PAGES * 64,
            draining=False,
            anew=False,
            now_s=now,
        )
    return made


def times(work: Callable[[], object], repeats: int) -> dict[str, float]:
    """Microseconds of each of several runs: on the clock, and of this thread's processor time."""
    wall, processor = [], []
    for _ in range(repeats):
        begun, begun_cpu = time.perf_counter(), time.thread_time()
        work()
        processor.append((time.thread_time() - begun_cpu) * 1e6)
        wall.append((time.perf_counter() - begun) * 1e6)
    parts, of_cpu = quantiles(wall, n=100), quantiles(processor, n=100)
    return {
        "median_us": round(parts[49], 1),
        "p99_us": round(parts[98], 1),
        "cpu_median_us": round(of_cpu[49], 1),
        "cpu_p99_us": round(of_cpu[98], 1),
    }


def main() -> None:
    """Measure, print, and keep."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--out", type=Path)
    asked.add_argument("--repeats", type=int, default=2_000)
    given = asked.parse_args()
    dice = random.Random(SEED)  # noqa: S311 - as above
    prefix = [dice.randbytes(32) for _ in range(TOKENS // 64)]
    kept: dict[str, Any] = {}
    for count in NODES:
        made, now = router(count), time.monotonic()

        def decide(made: _core.Router = made, now: float = now, hashes: list[bytes] | None = None) -> None:
            placing = made.place(tokens=TOKENS, prefix_hashes=hashes or [], patience_s=0, most_s=10, now_s=now)
            word, _, _ = placing.next(now)
            assert word == "ask"
            placing.answered("granted", now_s=now)

        repeats = max(given.repeats * 1_000 // max(count, 1_000), 200)
        kept[f"{count}"] = {
            "decision": times(decide, repeats),
            "decision_with_a_known_prefix": times(lambda decide=decide: decide(hashes=prefix), repeats),  # type: ignore[misc]
            "rank": times(lambda made=made, now=now: made.rank(tokens=TOKENS, now_s=now), max(repeats // 10, 20)),  # type: ignore[misc]
        }
        print(count, json.dumps(kept[f"{count}"]), flush=True)
    if given.out is not None:
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        head = {"command": "python benches/fleet_decision.py", "date": date, "machine": machine()}
        given.out.write_text(json.dumps({**head, "nodes": kept}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
