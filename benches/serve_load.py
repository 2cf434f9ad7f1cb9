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
import shlex
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
limits = {"admits_per_second": int(sys.argv[3])} if sys.argv[3] != "0" else {}
running = Service.start(budget, socket=sys.argv[1], max_requests=100_000, seats=100_000, limits=limits)
print(time.perf_counter() - began, flush=True)
if sys.argv[2] == "spin":
    def spin():
        while True:
            pass
    threading.Thread(target=spin, daemon=True).start()
sys.stdin.read()
"""

# Name, what the server's Python does, its limit of Admits per second (0: none), flags of the generator. Its rate is
# of Admits, and each is followed by a Release.
RUNS: list[tuple[str, str, int, list[str]]] = [
    ("saturated", "idle", 0, ["--call", "admit"]),
    ("saturated, GetCapacity", "idle", 0, ["--call", "capacity"]),
    ("5,000 calls/s", "idle", 0, ["--rate", "2500"]),
    ("5,000 calls/s, a Python thread spins in the server", "spin", 0, ["--rate", "2500"]),
    ("10,000 calls/s", "idle", 0, ["--rate", "5000"]),
    ("1,000 watchers at 20 changes/s", "idle", 0, ["--call", "watch", "--watchers", "1000", "--rate", "20"]),
]

# Not repeated: it is long. The flags' `--seconds` counts, not that of the command line.
OVERLOAD = (
    "ten times the limit of 2,000 Admits/s",
    "idle",
    2_000,
    ["--rate", "20000", "--connections", "8", "--seconds", "60"],
)


def rss_anon_kib(pid: int) -> int:
    """Resident anonymous memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:"))


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(load: Path, mode: str, limit: int, flags: list[str], seconds: int) -> dict[str, Any]:
    """One run against a fresh server."""
    with tempfile.TemporaryDirectory() as home:
        socket = Path(home) / "h.sock"
        began = time.perf_counter()
        command = [sys.executable, "-c", SERVER, str(socket), mode, str(limit)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            in_python = float(server.stdout.readline())
            ready = time.perf_counter() - began
            before, used_s, sent = rss_anon_kib(server.pid), cpu_s(server.pid), time.perf_counter()
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
                "cores": round((cpu_s(server.pid) - used_s) / (time.perf_counter() - sent), 3),
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
    parser.add_argument("--overload", action="store_true", help="only the overload, for a minute")
    options = parser.parse_args()
    results = []
    for name, mode, limit, flags in [OVERLOAD] if options.overload else RUNS:
        repeat = 1 if options.overload else options.repeat
        taken = sorted(
            (run(options.load, mode, limit, flags, options.seconds) for _ in range(repeat)),
            key=lambda result: result.get("calls_per_second", 0),
        )
        median = taken[len(taken) // 2]
        spread = {
            "calls_per_second": [result.get("calls_per_second") for result in taken],
            "p99_us": [result.get("latency_us", {}).get("p99") for result in taken],
            "late_p99_us": [result.get("late_us", {}).get("p99") for result in taken],
            "cores": [result["server"]["cores"] for result in taken],
        }
        results.append({"run": name, **median, "spread": spread})
    document = {
        "command": shlex.join(["python", *sys.argv]),
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
