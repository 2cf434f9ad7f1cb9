"""Replacement policies on synthetic streams: the published anchors again, and what the simulator takes.

`python benches/policies.py --out benches/results/policies.json --plot docs/plots/policies.png`, about a minute.

Published: GLM-5.1, top-k 2,048, a prompt of 100,384 tokens, 1,000 decode steps, mean over 78 layers (arXiv 2608.07009).
The stream is fitted to the three figures of LRU; those of the other policies follow from it, and are compared.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from hisparse_svc.cli import simulate_plot
from hisparse_svc.simulate import Wanted, simulate
from hisparse_svc.topk import Stream, Synthetic, write_synthetic

PUBLISHED = {
    ("lru", 2048): 0.30,
    ("fifo", 4096): 0.172,
    ("random", 4096): 0.161,
    ("lru", 4096): 0.134,
    ("belady", 4096): 0.082,
    ("lru", 8192): 0.067,
}
"""Miss share by policy and hot rows; with as many rows as the top-k every policy keeps the current picks alone."""

FITTED = Synthetic(context=100_384, steps=1000, layers=2, misses={2048: 0.287, 4096: 0.129, 8192: 0.065})
TIMED = Synthetic(context=65_536, steps=200, layers=4)


def run(synthetic: Synthetic, wanted: Wanted, folder: Path) -> tuple[dict[str, Any], dict[str, float]]:
    """Write a stream and simulate it; give the document, and the seconds of a core and bytes it took."""
    path = folder / "stream.topk"
    start = time.process_time()
    write_synthetic(path, synthetic)
    written = time.process_time()
    document = simulate([Stream(path)], wanted)
    took = {"write_cpu_s": written - start, "simulate_cpu_s": time.process_time() - written}
    return document, {**{name: round(s, 2) for name, s in took.items()}, "file_bytes": path.stat().st_size}


def anchors(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Put what was published beside what the stream gives."""
    found = {(row["policy"], row["hot_rows"]): row["miss_share"] for row in document["results"]}
    return [
        {"policy": policy, "hot_rows": rows, "published": share, "ours": round(found[policy, rows], 4)}
        for (policy, rows), share in PUBLISHED.items()
    ]


def main() -> None:
    """Simulate, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        fitted, fitted_took = run(FITTED, Wanted(hot_rows=(2048, 3072, 4096, 6144, 8192)), Path(made))
        timed, timed_took = run(TIMED, Wanted(hot_rows=(4096,), skip=20), Path(made))
    rows = [{key: row[key] for key in ("policy", "hot_rows", "miss_share")} for row in fitted["results"]]
    document = {
        "what": "miss shares of replacement policies on synthetic top-k streams; seconds of one core",
        "command": shlex.join(["python", *sys.argv]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": platform.machine(),
        "numpy": np.__version__,
        "anchors": anchors(fitted),
        "fitted": {"stream": FITTED.source(), **fitted_took, "rows": rows},
        "timed": {"stream": TIMED.source(), **timed_took, "policies": len(timed["results"])},
    }
    for row in document["anchors"]:
        print(f"{row['policy']:>8} {row['hot_rows']:>6}  published {row['published']:6.1%}  ours {row['ours']:7.2%}")
    print(json.dumps({"fitted": fitted_took, "timed": timed_took}))
    for row in rows:
        print(row)
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if arguments.plot:
        simulate_plot.draw(fitted, arguments.plot)


if __name__ == "__main__":
    main()
