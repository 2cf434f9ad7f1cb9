"""How long `serve` is away: killed with a million pages granted, started again, and granting anew.

Usage: ``python benches/restart.py [--rounds 5]`` after ``make build``; prints a document to keep in
``benches/results/restart.json``. The pool is bookkeeping (`--backing none`), as the bytes of a million pages fit no
small machine; nothing of it is published, since only an attached engine does that. The replay of a million pages'
hashes is measured by ``cargo bench -p hisparse-core --bench restart``.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from hisparse_svc import Client, HiSparseError

PAGES, LEASE_PAGES, PAGE_TOKENS = 1_000_000, 360, 64
NODE = ["--backing", "none", "--host-pool", "3500GiB", "--kv-bytes", "4TiB", "--hot-rows", "4096", "--http", "off"]
BATCH = 64


def start(home: str) -> subprocess.Popen[str]:
    """A service at the socket in `home`; it is not ready yet."""
    command = [sys.executable, "-m", "hisparse_svc", "serve", *NODE, "--max-requests", "8192", "--socket", f"{home}/h"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def ready_s(process: subprocess.Popen[str], since: float) -> float:
    """Seconds until it says that it is ready."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready"), line
    return time.perf_counter() - since


def granted_pages(client: Client) -> int:
    """Pages in leases' hands."""
    pool = next(pool for pool in client.get_capacity().pools if pool.name == "host_pages")
    return pool.total - pool.free


def fill(client: Client) -> int:
    """Grants and commits leases until the pool has a million pages granted, or is full."""
    leases = 0
    try:
        while leases < PAGES // LEASE_PAGES:
            held = client.admit(prompt_tokens=LEASE_PAGES * PAGE_TOKENS, request_id=f"r{leases}", ttl_s=600)
            held.commit()
            leases += 1
    except HiSparseError as refusal:
        print(f"{leases} leases: {refusal}", file=sys.stderr)
    return leases


def show(times: list[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": round(median(times), 3), "min": round(min(times), 3), "max": round(max(times), 3)}


def main() -> None:
    """Kills it and prints how long it was away."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as home:
        process = start(home)
        ready_s(process, time.perf_counter())
        with Client(f"unix:{home}/h") as client:
            leases, pages = fill(client), granted_pages(client)
        journal = Path(f"{home}/h.journal").stat().st_size
        away: list[float] = []
        fresh: list[float] = []
        for _ in range(rounds):
            begun = time.perf_counter()
            process.send_signal(signal.SIGKILL)
            process.wait()
            process = start(home)
            away.append(ready_s(process, begun))
            with Client(f"unix:{home}/h") as client:
                assert granted_pages(client) == pages, "every lease is there"
                client.admit(prompt_tokens=1).release()
            with tempfile.TemporaryDirectory() as empty:
                begun = time.perf_counter()
                other = start(empty)
                fresh.append(ready_s(other, begun))
                other.kill()
                other.wait()
        process.kill()
        process.wait()
    print(
        json.dumps(
            {
                "command": shlex.join(["python", *sys.argv]),
                "load_average": round(os.getloadavg()[0], 1),
                "leases": leases,
                "granted_pages": pages,
                "journal_bytes": journal,
                "killed_to_ready_s": show(away),
                "start_without_a_journal_s": show(fresh),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
