"""How fast the service answers, and what it takes: runs the load generator against a service held by Python.

Usage: ``python benches/serve_load.py --out benches/results/serve_load.json`` after ``make build`` and
``cargo build --release -p hisparse-serve --example load``. Client and server share this machine's cores.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOAD = "release/examples/load"

# Serves a GLM-5.2 node until its standard input closes; with "spin" a Python thread never gives up the interpreter.
SERVER = """
import sys, threading, time
began = time.perf_counter()
from hisparse_svc._core import Model, Service, plan
budget = plan({"kv_bytes": "80GiB", "host_pool": "1280GiB"}, Model.preset("glm-5.2"))
running = Service.start(budget, socket=sys.argv[1], max_requests=100_000, seats=100_000)
print(time.perf_counter() - began, flush=True)
if sys.argv[2] == "spin":
    def spin():
        while True:
            pass
    threading.Thread(target=spin, daemon=True).start()
sys.stdin.read()
"""

RUNS: list[tuple[str, str, list[str]]] = [
    ("saturated", "idle", ["--call", "admit"]),
    ("saturated, GetCapacity", "idle", ["--call", "capacity"]),
    ("5,000 calls/s", "idle", ["--call", "admit", "--rate", "5000"]),
    ("5,000 calls/s, a Python thread spins in the server", "spin", ["--call", "admit", "--rate", "5000"]),
]


def rss_anon_kib(pid: int) -> int:
    """Resident anonymous memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:"))


def run(load: Path, mode: str, flags: list[str], seconds: int) -> dict[str, Any]:
    """One run against a fresh server."""
    with tempfile.TemporaryDirectory() as home:
        socket = Path(home) / "h.sock"
        began = time.perf_counter()
        command = [sys.executable, "-c", SERVER, str(socket), mode]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            in_python = float(server.stdout.readline())
            ready = time.perf_counter() - began
            before = rss_anon_kib(server.pid)
            output = subprocess.run(
                [load, "--socket", socket, "--seconds", str(seconds), *flags],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            result: dict[str, Any] = json.loads(output)
            result["server"] = {
                "ready_s": {"from_process_start": round(ready, 3), "from_import": round(in_python, 3)},
                "rss_anon_kib": {"idle": before, "after": rss_anon_kib(server.pid)},
            }
            server.kill()
    return result


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}


def main() -> None:
    """Take every run several times and keep the median by calls per second, with the spread beside it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--load", type=Path, default=ROOT / "target" / LOAD)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    results = []
    for name, mode, flags in RUNS:
        taken = sorted(
            (run(options.load, mode, flags, options.seconds) for _ in range(options.repeat)),
            key=lambda result: result["calls_per_second"],
        )
        median = taken[len(taken) // 2]
        spread = {
            "calls_per_second": [result["calls_per_second"] for result in taken],
            "p99_us": [result["latency_us"]["p99"] for result in taken],
        }
        results.append({"run": name, **median, "spread": spread})
    document = {
        "command": "python benches/serve_load.py",
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "machine": machine(),
        "load_average_at_end": os.getloadavg()[0],
        "results": results,
    }
    text = json.dumps(document, indent=2) + "\n"
    if options.out:
        options.out.write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
