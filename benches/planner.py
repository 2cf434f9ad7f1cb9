"""What the planner costs: an import, a process, and ten thousand points from Python. `make bench` runs it.

The result is kept as JSON with machine, command, median, spread and date. Nothing here asserts a time.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import resource
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hisparse_svc

if TYPE_CHECKING:
    from collections.abc import Callable

RESULT = Path(__file__).parent / "results" / "planner.json"
POINTS = 10_000


def seconds(work: Callable[[], object], repeats: int) -> dict[str, Any]:
    """Time a piece of work several times, after one run that does not count."""
    work()
    taken, worked = [], []
    for _ in range(repeats):
        start, start_cpu = time.perf_counter(), cpu_seconds()
        work()
        taken.append(time.perf_counter() - start)
        worked.append(cpu_seconds() - start_cpu)
    quartiles = statistics.quantiles(taken, n=4)
    return {
        "cpu_median_ms": round(statistics.median(worked) * 1e3, 2),
        "median_ms": round(statistics.median(taken) * 1e3, 2),
        "quartiles_ms": [round(quartiles[0] * 1e3, 2), round(quartiles[2] * 1e3, 2)],
        "worst_ms": round(max(taken) * 1e3, 2),
        "repeats": repeats,
    }


def cpu_seconds() -> float:
    """Processor time of this process and its children: what a shared machine cannot blur."""
    spent = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in spent)


def process(*words: str) -> Callable[[], object]:
    """Make a piece of work out of a Python process."""
    return lambda: subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)


def sweep() -> None:
    """Plan ten thousand points: hot rows, ratio and length, for one model that was read once."""
    model = hisparse_svc.load_model("glm-5.2")
    seats = []
    for hot_rows in range(2048, 2048 + 64 * 100, 64):
        for ratio in range(1, 11):
            for context in range(8192, 8192 * 11, 8192):
                plan = hisparse_svc.plan(
                    model, gpu="h200", tp=8, ep=True, hot_rows=hot_rows, ratio=ratio, context=context
                )
                seats.append(plan.seats)
    assert len(seats) == POINTS


def cpu() -> str:
    """Name the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    """Measure and keep."""
    load = round(os.getloadavg()[0], 1)
    results = {
        "bare python process": seconds(process("-c", "pass"), 20),
        "process that imports hisparse_svc": seconds(process("-c", "import hisparse_svc"), 20),
        "process of `plan glm-5.2`": seconds(process("-m", "hisparse_svc", "plan", "glm-5.2"), 20),
        "process of `plan glm-5.2 --json`": seconds(process("-m", "hisparse_svc", "plan", "glm-5.2", "--json"), 20),
        f"sweep of {POINTS:,} points": seconds(sweep, 5),
    }
    document = {
        "command": shlex.join(["python", *sys.argv]),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "machine": {"cpu": cpu(), "cores": os.cpu_count(), "load": load, "python": platform.python_version()},
        "version": hisparse_svc.__version__,
        "results": results,
    }
    RESULT.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
