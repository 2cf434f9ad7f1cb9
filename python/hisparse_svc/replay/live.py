"""Play a trace against a running server, through the calls that a router makes.

::

    speed X    tasks in real time: sleep to the arrival, Admit with `wait`, run, Release
    max        one clock that jumps from event to event: every Admit and Release in the trace's order, none waited for

With `max` the waiting line is kept here, first come first served, because trace time does not pass on the server.
Where it is played, on one node or on many, is its desk's to know.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
import secrets
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hisparse_svc import _core
from hisparse_svc.errors import HiSparseError
from hisparse_svc.fleet.errors import Unsettled
from hisparse_svc.replay.audit import Audit, count_extents
from hisparse_svc.rpc.refusals import NeverFits, PoolBusy, QuotaExceeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from hisparse_svc import aio
    from hisparse_svc._core import Trace
    from hisparse_svc.replay.desks import Desk
    from hisparse_svc.replay.options import Options

SAMPLES = 720
"""Points of the timeline over the arrivals."""

LEASE_TTL_S = 600.0
"""Life of a lease whose replay dies; while it lives it releases each itself."""


@dataclass
class Tally:
    """What has come of the requests so far."""

    admitted: int = 0
    waited: int = 0
    refused_never_fits: int = 0
    refused_busy: int = 0
    lost: int = 0
    """Of those admitted: their node was gone when they ended."""
    unsettled: int = 0
    """Their node fell silent over them, and what it made of them was not known in time."""
    prefix_hit_pages: int = 0
    peak_running: int = 0
    waits_ms: list[int] = field(default_factory=list)
    new_extents: list[int] = field(default_factory=list)
    shared_extents: list[int] = field(default_factory=list)
    timeline: list[dict[str, int]] = field(default_factory=list)


async def play(
    desk: Desk, trace: Trace, options: Options, progress: Callable[[int], None] | None = None
) -> dict[str, Any]:
    """Play a trace against a server, or several.

    However it ends, it gives its leases back first; a cancellation says in its text whether it could.

    Returns:
        `outcome` and `timeline`, as `document.play`; the outcome also has `unbalanced`, which must be 0, and what is
        above 0 in a fleet alone: `lost` of the admitted found their node gone at their end, and `unsettled` ones were
        neither admitted nor refused, as their node fell silent over them.
    """
    run = _Run(desk, trace, options, progress or (lambda _: None))
    await run.begin()
    try:
        if math.isinf(options.speed):
            await run.in_order()
        else:
            await run.in_time()
    except asyncio.CancelledError:
        left = await run.give_back()
        kept = f"{left} of its leases could not be given back, and end within {LEASE_TTL_S:g} s"
        raise asyncio.CancelledError(kept if left else "its leases were given back") from None
    except HiSparseError:
        await run.give_back()  # what ended the replay matters more than what then cannot be given back
        raise
    return run.result()


class _Run:
    def __init__(self, desk: Desk, trace: Trace, options: Options, progress: Callable[[int], None]) -> None:
        self.desk, self.trace, self.options, self.progress = desk, trace, options, progress
        self.requests = trace.requests()
        self.name = f"replay-{secrets.token_hex(4)}"
        self.tally = Tally()
        self.running: dict[int, aio.HeldLease] = {}
        self.open: set[int] = set()
        """Requests that may hold a lease: asked for, and neither refused nor released; an answer may be on its way."""
        self.waiting: deque[int] = deque()
        self.arrived = 0

    async def begin(self) -> None:
        self.page_tokens, totals = await self.desk.begin()
        self.total_pages = sum(totals.values())
        self.audits = {node: Audit(total) for node, total in totals.items()}
        self.evictable = dict.fromkeys(totals, 0)
        self.peak = 0
        first, last = (self.requests[0][0], self.requests[-1][0]) if self.requests else (0, 0)
        self.step_ms = max((last - first) // SAMPLES, 1)
        self.next_sample_ms = first

    async def give_back(self) -> int:
        """Release what may still be held, up to the first failure; how much is left."""
        with contextlib.suppress(HiSparseError):
            for place in sorted(self.open):
                await self.desk.release(self.request_id(place))
                self.open.remove(place)
        return len(self.open)

    def request_id(self, place: int) -> str:
        return f"{self.name}-{place}"

    # --- max: one clock, jumping -------------------------------------------------------------------------------------

    async def in_order(self) -> None:
        self.ends: list[tuple[int, int]] = []
        for place, (at_ms, *_) in enumerate(self.requests):
            await self.catch_up(at_ms * 1_000)
            self.sample(at_ms)
            if self.waiting or not await self.try_admit(place, at_ms * 1_000):
                self.waiting.append(place)
            self.arrived += 1
            self.progress(self.arrived)
        await self.catch_up(None)

    async def catch_up(self, until_us: int | None) -> None:
        """Play every end, and every end of patience, up to a moment; the line moves after each."""
        while True:
            moments = [self.ends[0][0]] if self.ends else []
            moments += [self.patience_ends(self.waiting[0])] if self.waiting else []
            now = min(moments, default=None)
            if now is None or (until_us is not None and now > until_us):
                return
            self.sample(now // 1_000)
            while self.ends and self.ends[0][0] <= now:
                await self.finish(heapq.heappop(self.ends)[1])
            while self.waiting and self.patience_ends(self.waiting[0]) <= now:
                self.waiting.popleft()
                self.tally.refused_busy += 1
            while self.waiting and await self.try_admit(self.waiting[0], now):
                self.waiting.popleft()

    def patience_ends(self, place: int) -> int:
        return self.requests[place][0] * 1_000 + round(self.options.max_wait_s * 1_000_000)

    async def try_admit(self, place: int, now_us: int) -> bool:
        """Ask once; whether that settled it."""
        try:
            held = await self.ask(place, 0.0)
        except NeverFits:
            self.tally.refused_never_fits += 1
            return True
        except Unsettled:
            self.tally.unsettled += 1
            return True
        except (PoolBusy, QuotaExceeded):
            return False
        waited_ms = now_us // 1_000 - self.requests[place][0]
        heapq.heappush(self.ends, (now_us + self.started(place, held, waited_ms), place))
        return True

    # --- speed X: tasks in real time ---------------------------------------------------------------------------------

    async def in_time(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                await self.arrivals(tasks)
        except* HiSparseError as failures:
            # The tasks share one connection: the first failure tells what became of it.
            raise failures.exceptions[0] from None

    async def arrivals(self, tasks: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        origin_s = loop.time()
        for place, (at_ms, *_) in enumerate(self.requests):
            await asyncio.sleep(max(self.seconds(at_ms) - (loop.time() - origin_s), 0))
            self.sample(at_ms)
            tasks.create_task(self.one(place))
            self.arrived += 1
            self.progress(self.arrived)

    def seconds(self, at_ms: float) -> float:
        return (at_ms - self.requests[0][0]) / 1_000 / self.options.speed

    async def one(self, place: int) -> None:
        speed, waited_ms = self.options.speed, 0
        try:
            try:
                held = await self.ask(place, 0.0)
            except (PoolBusy, QuotaExceeded):
                begun_s = asyncio.get_running_loop().time()
                held = await self.wait_in_line(place)
                waited_ms = round((asyncio.get_running_loop().time() - begun_s) * 1_000 * speed)
        except NeverFits:
            self.tally.refused_never_fits += 1
            return
        except Unsettled:
            self.tally.unsettled += 1
            return
        except (PoolBusy, QuotaExceeded):
            self.tally.refused_busy += 1
            return
        await asyncio.sleep(self.started(place, held, waited_ms) / 1_000_000 / speed)
        await self.finish(place)

    async def wait_in_line(self, place: int) -> aio.HeldLease:
        self.waiting.append(place)
        try:
            return await self.ask(place, self.options.max_wait_s / self.options.speed)
        finally:
            self.waiting.remove(place)

    # --- both --------------------------------------------------------------------------------------------------------

    async def ask(self, place: int, wait_s: float) -> aio.HeldLease:
        _, prompt, output = self.requests[place]
        self.open.add(place)
        try:
            return await self.desk.admit(
                prompt,
                output,
                request_id=self.request_id(place),
                prefix_hashes=self.trace.page_hashes(place, self.page_tokens),
                ttl_s=LEASE_TTL_S,
                wait_s=wait_s,
            )
        except (NeverFits, PoolBusy, QuotaExceeded, Unsettled):  # the fleet itself takes the last one back
            self.open.discard(place)
            raise

    def started(self, place: int, held: aio.HeldLease, waited_ms: int) -> int:
        """Count a grant; how long it runs, in microseconds."""
        _, prompt, output = self.requests[place]
        lease, tally, node, pages = held.lease, self.tally, self.desk.node_of(held), held.capacity.pool("host_pages")
        audit = self.audits.setdefault(node, Audit(pages.total))  # one that came later
        audit.granted(lease)
        audit.seen(held.capacity)
        self.peak = max(self.peak, self.used())
        self.evictable[node] = pages.evictable
        self.running[place] = held
        tally.admitted += 1
        tally.peak_running = max(tally.peak_running, len(self.running))
        tally.prefix_hit_pages += lease.shared_pages
        tally.waited += waited_ms > 0
        tally.waits_ms.append(waited_ms)
        shared, new = count_extents(lease)
        tally.shared_extents.append(shared)
        tally.new_extents.append(new)
        return self.options.running_us(prompt, lease.shared_pages * self.page_tokens, output)

    async def finish(self, place: int) -> None:
        held = self.running.pop(place)
        # Counted out before the call: others may be granted its pages before the answer is here.
        self.audits[self.desk.node_of(held)].released(held.lease)
        there = await self.desk.finish(held)
        self.tally.lost += not there
        self.open.discard(place)

    def used(self) -> int:
        return sum(audit.used for audit in self.audits.values())

    def sample(self, now_ms: int) -> None:
        while self.next_sample_ms <= now_ms and len(self.tally.timeline) <= SAMPLES + 1:
            self.tally.timeline.append(
                {
                    "at_ms": self.next_sample_ms,
                    "used_pages": self.used(),
                    "evictable_pages": sum(self.evictable.values()),
                    "seats": len(self.running),
                    "waiting": len(self.waiting),
                }
            )
            self.next_sample_ms += self.step_ms

    def result(self) -> dict[str, Any]:
        tally = self.tally
        outcome = {
            "requests": len(self.requests),
            "admitted": tally.admitted,
            "waited": tally.waited,
            "refused_never_fits": tally.refused_never_fits,
            "refused_busy": tally.refused_busy,
            "lost": tally.lost,
            "unsettled": tally.unsettled,
            "peak_pages": self.peak,
            "total_pages": self.total_pages,
            "overcommit": sum(audit.overcommit for audit in self.audits.values()),
            "unbalanced": sum(audit.unbalanced for audit in self.audits.values()),
            "prefix_hit_pages": tally.prefix_hit_pages,
            "wait_ms": _core.percentiles(tally.waits_ms),
            "new_extents_per_request": _core.per_request(tally.new_extents),
            "shared_extents_per_request": _core.per_request(tally.shared_extents),
            "peak_running": tally.peak_running,
        }
        return {"outcome": outcome, "timeline": tally.timeline}
