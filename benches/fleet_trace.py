"""A fleet under a trace: real services, real routers, one node killed and one drained half way.

Usage, after ``make build``: ``benches/fleet_trace.py --trace TRACE.jsonl --out benches/results/fleet_trace.json``.

::

    this process ─► nodes: `hisparse-svc serve`, sized so that the trace is `--load` of what all of them hold
                 ─► routers: processes with a Fleet each, which take the trace's requests in turns
                 ─► half way: SIGKILL to one node, Drain to another
                 ─► auditor: every node's ledger, several times a second

A request whose node dies is admitted again elsewhere, for what it had still to produce, after its first lease has ended
for certain. The auditor lists each ledger twice around the others: a request whose one lease is in both lists, and
another lease in a list between them, has two at one time.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import datetime
import json
import math
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from hisparse_svc import Client, HiSparseError, LeaseNotFound, Refused, Unreachable, plan
from hisparse_svc.fleet import aio
from hisparse_svc.replay.options import Options
from hisparse_svc.replay.samples import load_trace

if TYPE_CHECKING:
    from hisparse_svc._core import Trace

LEASE_TTL_S = 3.0
"""Life of a lease without a renewal: also how long a request of the dead node waits for it to end."""
AUDIT_S = 0.1
KV_BYTES = "64GiB"
"""Enough seats that pages are what binds."""
WARM_UP_S = 2.0
"""From the start of the routers to the first arrival."""


# --- a router --------------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What became of one router's requests."""

    requests: int = 0
    finished: int = 0
    admits: int = 0
    calls: int = 0
    moved: int = 0
    finished_after_a_move: int = 0
    refused: dict[str, int] = field(default_factory=lambda: collections.defaultdict(int))
    refused_after_a_move: dict[str, int] = field(default_factory=lambda: collections.defaultdict(int))
    waits_ms: list[float] = field(default_factory=list)
    by_node: dict[str, int] = field(default_factory=lambda: collections.defaultdict(int))
    defects: list[str] = field(default_factory=list)


class Router:
    """Plays every so-many-th request of the trace."""

    def __init__(self, fleet: aio.Fleet, trace: Trace, options: Options, begin_s: float) -> None:
        self.fleet, self.trace, self.options, self.begin_s = fleet, trace, options, begin_s
        self.tally = Tally()
        self.requests = trace.requests()

    async def run(self, mine: range) -> None:
        """Play them."""
        first_ms = self.requests[0][0]
        async with asyncio.TaskGroup() as tasks:
            for place in mine:
                at_s = self.begin_s + (self.requests[place][0] - first_ms) / 1_000 / self.options.speed
                await asyncio.sleep(max(at_s - time.monotonic(), 0))
                tasks.create_task(self.one(place))

    async def one(self, place: int) -> None:
        """Play one request to its end, on as many nodes as it takes."""
        tally, moved = self.tally, False
        tally.requests += 1
        try:
            moved = await self.play(place)
        except Refused as refusal:
            where = tally.refused_after_a_move if getattr(refusal, "moved", False) else tally.refused
            where[refusal.reason or type(refusal).__name__] += 1
        except Unreachable as failure:
            where = tally.refused_after_a_move if getattr(failure, "moved", False) else tally.refused
            where[type(failure).__name__] += 1
        except Exception as failure:  # whatever it is, the result shows it
            tally.defects.append(f"request {place}: {failure!r}")
        else:
            tally.finished += 1
            tally.finished_after_a_move += moved

    async def play(self, place: int) -> bool:
        """Admit, hold, release; on a dead node, again elsewhere; whether it moved."""
        _, prompt, output = self.requests[place]
        generated, held = 0, None
        while True:
            held = await self.admit(place, prompt, output - generated, generated, held)
            running_s = self.options.running_us(prompt + generated, 0, output - generated) / 1e6 / self.options.speed
            begun = time.monotonic()
            if await self.hold(held, begun + running_s):
                return generated > 0 or len(held.lease.request_id.split("/")) > 1
            self.tally.moved += 1
            done = min((time.monotonic() - begun) / max(running_s, 1e-6), 1.0)
            generated = min(generated + int((output - generated) * done), output - 1)

    async def admit(
        self, place: int, prompt: int, output: int, generated: int, lost: aio.HeldLease | None
    ) -> aio.HeldLease:
        """Ask the fleet; a request that moves keeps its name and counts its moves."""
        tally, begun = self.tally, time.monotonic()
        name = f"{place}" if lost is None else f"{lost.lease.request_id}/moved"
        try:
            held = await self.fleet.admit(
                prompt,
                output,
                generated_tokens=generated,
                request_id=name,
                wait_s=self.options.max_wait_s / self.options.speed,
                instead_of=lost,
            )
        except HiSparseError as error:
            tally.calls += len(getattr(error, "attempts", ()))
            error.moved = lost is not None  # type: ignore[attr-defined]
            raise
        tally.admits += 1
        tally.calls += len(held.attempts) + 1
        tally.by_node[held.node] += 1
        tally.waits_ms.append((time.monotonic() - begun) * 1_000)
        return held

    async def hold(self, held: aio.HeldLease, ends_s: float) -> bool:
        """Use a lease until the request ends; whether its node lived so long."""
        try:
            await held.commit(LEASE_TTL_S)
            while (left_s := ends_s - time.monotonic()) > LEASE_TTL_S / 3:
                await asyncio.sleep(LEASE_TTL_S / 3)
                await held.renew(LEASE_TTL_S)
            await asyncio.sleep(max(left_s, 0))
            await held.release()
        except (Unreachable, LeaseNotFound):
            return False
        return True


async def route(given: argparse.Namespace) -> None:
    """Be one router, and print its tally."""
    trace = load_trace(given.trace, given.requests)
    options = Options(speed=given.speed, max_wait_s=given.max_wait)
    async with aio.Fleet(given.nodes, ttl_s=LEASE_TTL_S, policy=given.policy, choices=given.choices) as fleet:
        await fleet.wait_until_seen()
        router = Router(fleet, trace, options, given.begin)
        await router.run(range(given.router, len(trace), given.routers))
    print(json.dumps(router.tally.__dict__))


# --- the nodes, and the auditor --------------------------------------------------------------------------------------


class Node:
    """`hisparse-svc serve`, ledger only, on a socket of its own."""

    def __init__(self, home: Path, name: str, host_bytes: int) -> None:
        self.name, self.target = name, f"unix:{home}/{name}.sock"
        command = [sys.executable, "-m", "hisparse_svc", "serve", "--backing", "none", "--http", "off"]
        command += ["--host-pool", str(host_bytes), "--kv-bytes", KV_BYTES]
        self.process = subprocess.Popen(
            [*command, "--socket", f"{home}/{name}.sock"], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("ready")
        self.client = Client(self.target, timeout_s=2.0)
        self.alive = True

    def end(self) -> None:
        """Stop it."""
        self.client.close()
        self.process.terminate()
        self.process.wait()


class Auditor:
    """Looks into every ledger."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.looks = 0
        self.overcommit = 0
        self.unbalanced = 0
        self.doubles: list[str] = []
        self.peaks: dict[str, int] = {}

    def look(self) -> None:
        """Check the books of each node, and each request against all of them."""
        self.looks += 1
        passes: list[dict[str, dict[str, str]]] = []
        for _ in range(2):
            passes.append({node.name: found for node in self.nodes if (found := self.leases(node)) is not None})
        for name, first in passes[0].items():
            for request, lease in first.items():
                if passes[1].get(name, {}).get(request) != lease:
                    continue  # it may have ended between
                others = [other for other, listed in passes[0].items() if other > name and request in listed]
                others += [other for other, listed in passes[1].items() if other < name and request in listed]
                self.doubles += [f"request {request} on {name} and {other}" for other in others]
        for node in self.nodes:
            self.books(node)

    def leases(self, node: Node) -> dict[str, str] | None:
        """The live leases of a node: request to lease id; a request that moved counts as the one it was."""
        if not node.alive:
            return None
        try:
            return {lease.request_id.split("/")[0]: lease.id for lease in node.client.list_leases()}
        except HiSparseError:
            return None

    def books(self, node: Node) -> None:
        """Check that nothing is held twice: what is held is within what there is, in each pool."""
        if not node.alive:
            return
        try:
            seen = node.client.get_capacity()
        except HiSparseError:
            return
        for pool in seen.pools:
            held = pool.reserved + pool.committed
            parts = held + pool.free + pool.evictable + pool.scrubbing + pool.quarantined
            self.unbalanced += parts != pool.total
            self.overcommit += max(held - pool.total, 0)
            if pool.name == "host_pages":
                self.peaks[node.name] = max(self.peaks.get(node.name, 0), held)


def offered_pages(trace: Trace, options: Options) -> float:
    """Mean pages in use if every request ran at once when it came."""
    requests = trace.requests()
    span_us = (requests[-1][0] - requests[0][0]) * 1_000
    page_us = sum(-(-(prompt + output) // 64) * options.running_us(prompt, 0, output) for _, prompt, output in requests)
    return page_us / max(span_us, 1)


def play(given: argparse.Namespace, home: Path) -> dict[str, Any]:
    """Run the scene; give the result."""
    trace = load_trace(given.trace, given.requests)
    options = Options(speed=given.speed, max_wait_s=given.max_wait)
    requests = trace.requests()
    page_bytes = plan("glm-5.2", kv_dtype="fp8_e4m3", host_pool="16GiB", kv_bytes=KV_BYTES)
    per_page = page_bytes.host_bytes / (page_bytes.logical_tokens // 64)
    longest = max(-(-(prompt + output) // 64) for _, prompt, output in requests)
    pages = max(math.ceil(offered_pages(trace, options) / given.load / given.count), longest)
    nodes = [Node(home, f"n{place}", math.ceil((pages + 1) * per_page)) for place in range(given.count)]
    begin = time.monotonic() + WARM_UP_S
    span_s = (requests[-1][0] - requests[0][0]) / 1_000 / given.speed
    listed = ",".join(f"{node.name}={node.target}" for node in nodes)
    command = [sys.executable, __file__, "--nodes", listed, "--begin", str(begin), "--trace", given.trace]
    command += ["--speed", str(given.speed), "--max-wait", str(given.max_wait), "--routers", str(given.routers)]
    command += ["--choices", str(given.choices)] if given.choices else []
    command += ["--policy", given.policy] if given.policy else []
    command += ["--requests", str(given.requests)] if given.requests else []
    routers = [
        subprocess.Popen([*command, "--router", str(place)], stdout=subprocess.PIPE, text=True)
        for place in range(given.routers)
    ]
    auditor, struck = Auditor(nodes), False
    try:
        while any(router.poll() is None for router in routers):
            if not struck and time.monotonic() > begin + span_s / 2:
                struck = True
                nodes[0].alive = False
                nodes[0].process.send_signal(signal.SIGKILL)
                nodes[1].client.drain()
            auditor.look()
            time.sleep(AUDIT_S)
        told = [json.loads(router.communicate()[0]) for router in routers]
        left = {node.name: len(node.client.list_leases()) for node in nodes if node.alive}
    finally:
        for router in routers:
            router.kill()
        for node in nodes:
            node.end()
    load = offered_pages(trace, options) / pages / given.count
    return {**scene(given, pages, load), **result(told, auditor), "leases_left": left}


def scene(given: argparse.Namespace, pages: int, load: float) -> dict[str, Any]:
    """Say what was played."""
    return {
        "nodes": given.count,
        "routers": given.routers,
        "speed": given.speed,
        "load": round(load, 3),
        "pages_per_node": pages,
        "killed": "n0",
        "drained": "n1",
    }


def result(told: list[dict[str, Any]], auditor: Auditor) -> dict[str, Any]:
    """Put the routers' tallies and the auditor's findings together."""
    total: dict[str, Any] = {
        key: sum(each[key] for each in told)
        for key in ("requests", "finished", "admits", "calls", "moved", "finished_after_a_move")
    }
    for key in ("refused", "refused_after_a_move", "by_node"):
        total[key] = dict(sum((collections.Counter(each[key]) for each in told), collections.Counter()))
    waits = sorted(wait for each in told for wait in each["waits_ms"])
    total["wait_ms"] = {
        "p50": round(waits[len(waits) // 2], 1),
        "p99": round(waits[len(waits) * 99 // 100], 1),
        "max": round(waits[-1], 1),
        "mean": round(mean(waits), 1),
    }
    refused = sum(total["refused"].values()) + sum(total["refused_after_a_move"].values())
    return {
        **total,
        "attempts_per_admit": round(total["calls"] / max(total["admits"], 1), 3),
        "neither_finished_nor_refused": total["requests"] - total["finished"] - refused,
        "overcommit": auditor.overcommit,
        "unbalanced": auditor.unbalanced,
        "requests_with_two_leases": len(auditor.doubles),
        "doubles": auditor.doubles[:5],
        "peak_pages": auditor.peaks,
        "audits": auditor.looks,
        "defects": [defect for each in told for defect in each["defects"]][:5],
    }


def main() -> None:
    """Play, print, and keep."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--trace", default="sample")
    asked.add_argument("--requests", type=int)
    asked.add_argument("--speed", type=float, default=30.0, help="trace seconds per second")
    asked.add_argument("--max-wait", type=float, default=30.0, help="patience, in trace seconds")
    asked.add_argument("--load", type=float, default=0.9)
    asked.add_argument("--count", type=int, default=4, help="nodes")
    asked.add_argument("--routers", type=int, default=3)
    asked.add_argument("--policy")
    asked.add_argument("--choices", type=int)
    asked.add_argument("--out", type=Path)
    asked.add_argument("--router", type=int, help=argparse.SUPPRESS)
    asked.add_argument("--nodes", help=argparse.SUPPRESS)
    asked.add_argument("--begin", type=float, help=argparse.SUPPRESS)
    given = asked.parse_args()
    if given.router is not None:
        asyncio.run(route(given))
        return
    with tempfile.TemporaryDirectory() as home:
        played = play(given, Path(home))
    if given.out is None:
        print(json.dumps(played, indent=2))
        return
    from serve_load import machine  # noqa: PLC0415 - only for a result to keep

    command = f"python benches/fleet_trace.py --trace {Path(given.trace).name} --speed {given.speed:g}"
    command += f" --requests {given.requests}" if given.requests else ""
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    kept = {"command": command, "date": date, "machine": machine(), **played}
    given.out.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(played, indent=2))


if __name__ == "__main__":
    main()
