"""Whether the service stays as it is while callers come and go, are killed and come back: its memory and descriptors.

Usage: ``python benches/soak.py --minutes 30 --out benches/results/soak.json`` after ``make build`` and
``cargo build --release -p hisparse-serve --example load``. Client and server share this machine's cores.

::

    every 5 s: a churning caller starts; every second one is killed (SIGKILL) in the midst of its calls
    with --restarts N: the service is killed and started anew at the same socket so many times, each life counted apart
    every 10 s: RssAnon, descriptors, connections, calls, leases of the service

Flat means, of the last tenth of a service's life against the tenth after its warm-up, a fifth: the median of its memory
is at most 5 % and 2 MiB higher, and the least of its descriptors at most 8. Of descriptors the least counts, because
every connected caller holds one, and how many are connected is chance; what leaks is there at the quietest moment too.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from serve_load import machine, rss_anon_kib

ROOT = Path(__file__).resolve().parent.parent
LOAD = "release/examples/load"
SAMPLE_S = 10.0
CALLER_S = 5.0

SERVER = """
import sys
from hisparse_svc._core import Model, Service, plan
budget = plan({"kv_bytes": "80GiB", "host_pool": "1280GiB"}, Model.preset("glm-5.2"))
running = Service.start(budget, socket=sys.argv[1], http="127.0.0.1:0", max_requests=2_000, seats=2_000)
print(next(address for address in running.addresses if address.startswith("http")), flush=True)
sys.stdin.read()
"""


class Served:
    """A service in a process of its own."""

    def __init__(self, socket: Path) -> None:
        command = [sys.executable, "-c", SERVER, str(socket)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.http = self.process.stdout.readline().strip()
        self.began = time.monotonic()
        self.samples: list[dict[str, float]] = []

    def sample(self) -> None:
        """Look at it once."""
        with urllib.request.urlopen(f"{self.http}/metrics") as answer:  # noqa: S310 - our own, on loopback
            page = answer.read().decode()
        series = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
        self.samples.append(
            {
                "s": round(time.monotonic() - self.began, 1),
                "rss_anon_kib": rss_anon_kib(self.process.pid),
                "descriptors": sum(1 for _ in Path(f"/proc/{self.process.pid}/fd").iterdir()),
                "connections": float(series["hisparse_connections"]),
                "calls": float(series["hisparse_calls"]),
                "leases": sum(float(value) for name, value in series.items() if name.startswith("hisparse_leases{")),
                "granted": float(series['hisparse_admit_total{result="granted",reason=""}']),
            }
        )

    def stop(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()

    def verdict(self) -> dict[str, Any]:
        """Say whether it stayed as it was."""
        count = len(self.samples)
        first, last = self.samples[count // 5 : count // 5 + max(count // 10, 3)], self.samples[-max(count // 10, 3) :]
        found: dict[str, Any] = {"samples": count, "seconds": self.samples[-1]["s"]}
        for name, of, slack in (("rss_anon_kib", statistics.median, 2_048), ("descriptors", min, 8)):
            before, after = (of([sample[name] for sample in part]) for part in (first, last))
            found[name] = {"after_warm_up": before, "at_end": after, "flat": after <= before * 1.05 + slack}
        return found


class Callers:
    """Churning callers; every second one dies in the midst of its calls."""

    def __init__(self, load: Path, socket: Path) -> None:
        self._command = [load, "--socket", socket, "--call", "churn", "--seconds", "20", "--in-flight", "16"]
        self._running: list[tuple[subprocess.Popen[str], float | None]] = []
        self._next = time.monotonic()
        self.seen = {"started": 0, "killed": 0, "visits_of_those_that_ended": 0, "refused": 0}

    def turn(self, now: float) -> None:
        """Start, kill and hear out whose time it is."""
        if now >= self._next:
            self._next = now + CALLER_S
            caller = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self.seen["started"] += 1
            dies = now + random.uniform(2, 15) if self.seen["started"] % 2 else None  # noqa: S311 - no secret
            self._running.append((caller, dies))
        for caller, dies in list(self._running):
            if caller.poll() is None and dies is not None and now >= dies:
                caller.send_signal(signal.SIGKILL)
                caller.wait()
                self.seen["killed"] += 1
            if caller.poll() is not None:
                text = caller.stdout.read() if caller.stdout else ""
                if caller.returncode == 0 and text:
                    told = json.loads(text)
                    self.seen["visits_of_those_that_ended"] += told["visits"]
                    self.seen["refused"] += told["refused"]
                self._running.remove((caller, dies))

    def stop(self) -> None:
        """End them all."""
        for caller, _ in self._running:
            caller.kill()
            caller.wait()


def soak(load: Path, minutes: float, restarts: int) -> tuple[list[Served], Callers]:
    """Run the soak."""
    begin = time.monotonic()
    due = [begin + minutes * 60 * (life + 1) / (restarts + 1) for life in range(restarts)]
    with tempfile.TemporaryDirectory() as home:
        socket = Path(home) / "h.sock"
        served, callers = [Served(socket)], Callers(load, socket)
        next_sample = begin
        while (now := time.monotonic()) < begin + minutes * 60:
            if due and now >= due[0]:
                due.pop(0)
                served[-1].stop()
                served.append(Served(socket))
            callers.turn(now)
            if now >= next_sample:
                next_sample = now + SAMPLE_S
                served[-1].sample()
            time.sleep(0.2)
        served[-1].sample()
        callers.stop()
        served[-1].stop()
    return served, callers


def main() -> None:
    """Run the soak and say whether it was flat."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", type=Path, default=ROOT / "target" / LOAD)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--restarts", type=int, default=0)
    options = parser.parse_args()
    random.seed(6)
    served, callers = soak(options.load, options.minutes, options.restarts)
    verdicts = [service.verdict() for service in served]
    document = {
        "command": shlex.join(["python", *sys.argv]),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "machine": machine(),
        "load_average_at_end": os.getloadavg()[0],
        "minutes": options.minutes,
        "callers": callers.seen,
        "services": verdicts,
        "flat": all(verdict[name]["flat"] for verdict in verdicts for name in ("rss_anon_kib", "descriptors")),
        "samples": [service.samples for service in served],
    }
    if options.out:
        options.out.write_text(json.dumps(document) + "\n")
    told = {name: document[name] for name in ("callers", "services", "flat")}
    sys.stdout.write(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
