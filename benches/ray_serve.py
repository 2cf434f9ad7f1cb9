"""The capacity router beside Ray Serve's own, on the same replicas and the same trace.

Usage, after ``make build``, with ``ray[serve]``: ``benches/ray_serve.py --out benches/results/ray_serve.json``.

Each run is `examples/ray_serve.py` in a cluster of its own; routers take turns. The default router chooses the shorter
of two queues and knows nothing of lengths, so its requests wait in the line of the node they came to.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from serve_load import machine

SCENE = Path(__file__).parents[1] / "examples/ray_serve.py"
ROUTERS = ("capacity", "default")


def run(router: str, load: float, speed: float) -> dict[str, Any]:
    """Play once."""
    command = [sys.executable, str(SCENE), "--json", "--router", router, "--load", str(load), "--speed", str(speed)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    played: dict[str, Any] = json.loads(told.strip().splitlines()[-1])
    print(json.dumps(played), flush=True)
    return played


def together(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Give the median of the runs, and each of them."""

    def middle(part: str, name: str) -> float:
        return median(each[part][name] for each in runs)

    told: dict[str, Any] = {"admitted": median(each["admitted"] for each in runs)}
    told["refused"] = median(sum(each["refused"].values()) for each in runs)
    for part in ("wait_ms", "first_grant_ms"):
        told[part] = {name: middle(part, name) for name in runs[0][part]}
    return {**told, "runs": runs}


def main() -> None:
    """Play, print, and keep."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--loads", type=float, nargs="+", default=[0.9, 1.2])
    asked.add_argument("--speed", type=float, default=10.0)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--out", type=Path)
    given = asked.parse_args()
    scenes = [(load, router) for load in given.loads for router in ROUTERS]
    runs: dict[tuple[float, str], list[dict[str, Any]]] = {scene: [] for scene in scenes}
    for _ in range(given.rounds):
        for load, router in scenes:
            runs[load, router].append(run(router, load, given.speed))
    loads = {f"{load:g}": {router: together(runs[load, router]) for router in ROUTERS} for load in given.loads}
    if given.out is not None:
        import ray  # noqa: PLC0415 - only its version, for a result to keep

        kept = {
            "command": f"python benches/ray_serve.py --rounds {given.rounds}",
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": machine(),
            "ray": ray.__version__,
            "replicas": 3,
            "loads": loads,
        }
        given.out.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
