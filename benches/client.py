"""What the commands and the Python client cost: start of `serve`, calls a second, and the replay of a trace.

Usage: ``python benches/client.py [--trace TRACE.jsonl] --out benches/results/client.json`` after ``make build``.
Client and server share this machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from hisparse_svc import Client, aio
from hisparse_svc.replay import live
from hisparse_svc.replay.desks import OneNode
from hisparse_svc.replay.document import in_process
from hisparse_svc.replay.options import Options
from hisparse_svc.replay.samples import load_trace
from serve_load import machine, rss_anon_kib

NODE = ["--backing", "none", "--host-pool", "160GiB", "--kv-bytes", "20GiB", "--hot-rows", "4096", "--http", "off"]
PAIRS = 2_000


class Served:
    """`hisparse-svc serve` on a socket of its own."""

    def __init__(self) -> None:
        self.home = tempfile.TemporaryDirectory()
        self.target = f"unix:{self.home.name}/h.sock"
        begun = time.perf_counter()
        command = [sys.executable, "-m", "hisparse_svc", "serve", *NODE, "--socket", f"{self.home.name}/h.sock"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("ready")
        self.ready_s = time.perf_counter() - begun

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()
        self.home.cleanup()


def spread(values: list[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": round(median(values), 3), "min": round(min(values), 3), "max": round(max(values), 3)}


def starts(repeat: int) -> dict[str, Any]:
    """From the command to its ready line, and the memory it then has."""
    seconds, memory = [], []
    for _ in range(repeat):
        with Served() as served:
            seconds.append(served.ready_s)
            memory.append(float(rss_anon_kib(served.process.pid)))
    return {"ready_s": spread(seconds), "rss_anon_kib": spread(memory)}


def blocking_pairs() -> float:
    """Pairs of Admit and Release a second, one after another."""
    with Served() as served, Client(served.target) as client:
        client.server_info()
        begun = time.perf_counter()
        for _ in range(PAIRS):
            with client.admit(4_096):
                pass
        return PAIRS / (time.perf_counter() - begun)


def asyncio_pairs(at_once: int = 32) -> float:
    """Pairs of Admit and Release a second, several at once on one connection."""

    async def drive(target: str) -> float:
        async with aio.Client(target) as client:
            await client.server_info()

            async def one() -> None:
                for _ in range(PAIRS // at_once):
                    async with client.admit(4_096):
                        pass

            begun = time.perf_counter()
            await asyncio.gather(*(one() for _ in range(at_once)))
            return PAIRS // at_once * at_once / (time.perf_counter() - begun)

    with Served() as served:
        return asyncio.run(drive(served.target))


def replays(path: str) -> dict[str, Any]:
    """The trace in process, and against a server in its own order."""
    trace = load_trace(path)
    begun = time.perf_counter()
    here = in_process(trace)
    in_process_s = time.perf_counter() - begun

    async def drive(target: str) -> dict[str, Any]:
        async with aio.Client(target) as client:
            played = await live.play(OneNode(client), trace, Options())
            outcome: dict[str, Any] = played["outcome"]
            return outcome

    with Served() as served:
        begun = time.perf_counter()
        there = asyncio.run(drive(served.target))
        live_s = time.perf_counter() - begun
    kept = ("requests", "admitted", "refused_busy", "refused_never_fits", "overcommit", "prefix_hit_pages")
    return {
        "in_process": {"seconds": round(in_process_s, 2), **{name: here[name] for name in kept}},
        "device_only": {name: here["device_only"][name] for name in kept},
        "against_a_server": {
            "seconds": round(live_s, 2),
            "unbalanced": there["unbalanced"],
            **{n: there[n] for n in kept},
        },
    }


def main() -> None:
    """Measure, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", default="sample")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    document = {
        "command": shlex.join(["python", *sys.argv]),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "machine": machine(),
        "serve_command": starts(options.repeat),
        "pairs_per_second": {
            "blocking, one at a time": spread([blocking_pairs() for _ in range(options.repeat)]),
            "asyncio, 32 at once": spread([asyncio_pairs() for _ in range(options.repeat)]),
        },
        "replay": replays(options.trace),
        "load_average_at_end": os.getloadavg()[0],
    }
    text = json.dumps(document, indent=2) + "\n"
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
