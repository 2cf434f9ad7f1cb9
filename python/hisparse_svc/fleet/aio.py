"""The asyncio fleet: tasks around the journey's steps, as many nodes as one loop can watch.

::

    async with aio.Fleet("dns:decode.pool:7411") as fleet:
        async with fleet.admit(4096, 256) as held:          # or: held = await fleet.admit(…)
            ...                                             # send the request to held.node

What each method means, takes and raises is written once, in `hisparse_svc.fleet.sync`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from typing import TYPE_CHECKING, Any

from hisparse_svc import aio as clients
from hisparse_svc.errors import HiSparseError
from hisparse_svc.fleet import settings as reading
from hisparse_svc.fleet.book import Book, Known, NodeView, Ranked
from hisparse_svc.fleet.following import Follower
from hisparse_svc.fleet.journey import Ask, Journey, Left, Rest, Settle, ends_at
from hisparse_svc.fleet.settings import CLOSE_S
from hisparse_svc.rpc import calls, values
from hisparse_svc.rpc.refusals import CLOSED, Unreachable
from hisparse_svc.rpc.watching import ENDED, Watching

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Sequence

    from hisparse_svc.fleet.directories import Directory, Member
    from hisparse_svc.fleet.errors import Attempt
    from hisparse_svc.rpc.tls import Tls

__all__ = ["Fleet", "HeldLease"]

PINGERS = 32
"""Pings under way at once."""


class Fleet:
    """Many nodes as one; make it inside the event loop that uses it.

    Arguments are those of `hisparse_svc.fleet.Fleet`.
    """

    def __init__(
        self,
        nodes: str | Iterable[str | Member] | Directory,
        *,
        tls: Tls | None = None,
        lengths: Iterable[int] = (),
        policy: str | None = None,
        choices: int | None = None,
        timeout_s: float = calls.TIMEOUT_S,
        attempt_s: float | None = None,
        ttl_s: float | None = None,
        stale_after_s: float | None = None,
    ) -> None:
        self._settings = reading.read(
            nodes, tls=tls, lengths=lengths, timeout_s=timeout_s, attempt_s=attempt_s, ttl_s=ttl_s
        )
        self._book = Book(policy=policy, choices=choices, stale_after_s=stale_after_s)
        self._loop = asyncio.get_running_loop()
        self._nodes: dict[Known, _Node] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._taking_back: set[asyncio.Task[Any]] = set()
        """What a close waits for."""
        self._closing = False
        self._listed = asyncio.Event()
        self._pingers = asyncio.Semaphore(PINGERS)
        self._spawn(self._ping_all())
        self._follower = Follower(
            self._settings.directory,
            lambda members: self._from_thread(self._take_members, members),
            lambda failure: self._from_thread(self._not_followed, failure),
        )

    def admit(
        self,
        prompt_tokens: int = 0,
        max_new_tokens: int = 0,
        *,
        generated_tokens: int = 0,
        pages: int = 0,
        prefix_hashes: Sequence[bytes] = (),
        request_id: str = "",
        tenant: str = "",
        priority: int = 0,
        ttl_s: float | None = None,
        wait_s: float = 0.0,
        instead_of: HeldLease | None = None,
    ) -> clients.PendingLease[HeldLease]:
        """As `hisparse_svc.fleet.Fleet.admit`: await it for the lease, or `async with` it to release the lease too."""
        request = values.Request(
            prompt_tokens=prompt_tokens,
            max_new_tokens=max_new_tokens,
            generated_tokens=generated_tokens,
            pages=pages,
            prefix_hashes=prefix_hashes,
            request_id=request_id,
            tenant=tenant,
            priority=priority,
            ttl_s=ttl_s,
        )
        return clients.PendingLease(self._admit(request, wait_s, instead_of))

    async def _admit(self, request: values.Request, wait_s: float, instead_of: HeldLease | None) -> HeldLease:
        await self._has_listed()
        self._check_open()
        journey = Journey(
            self._book,
            request,
            wait_s=calls.timeout(wait_s, "wait_s") if wait_s else 0.0,
            timeout_s=self._settings.timeout_s,
            attempt_s=self._settings.attempt_s,
            ttl_s=self._settings.ttl_s,
            instead_of=None if instead_of is None else instead_of.leaving(),
        )
        while True:
            self._check_open()
            match journey.step():
                case Rest(seconds):
                    await asyncio.sleep(seconds)
                case Settle() as settle:
                    if await self._settle(settle, journey.ends_at):
                        journey.settled()
                case Ask(known):
                    held = await self._ask(journey, known)
                    if held is not None:
                        return held

    async def _ask(self, journey: Journey, known: Known) -> HeldLease | None:
        node = self._nodes.get(known)
        if node is None:  # it has left just now
            journey.abandoned()
            return None
        node.hold(1)
        try:
            admission = journey.call.read(await node.client.send(journey.call, timeout_s=journey.attempt_s, tries=1))
        except HiSparseError as failure:
            node.hold(-1)
            journey.failed(known, failure)
            return None
        except BaseException:
            node.hold(-1)
            journey.abandoned()
            raise
        journey.granted(known, admission)
        return HeldLease(node, admission, tuple(journey.attempts), journey.lease_ends_at)

    async def _settle(self, settle: Settle, ends_at: float) -> bool:
        """Take back here until it is safe or time is over, and leave the rest to a task of its own."""
        try:
            while not settle.pace.is_safe(time.monotonic()) and time.monotonic() < ends_at:
                await self._take_back_step(settle, ends_at - time.monotonic())
            return settle.pace.is_safe(time.monotonic())
        finally:
            task = asyncio.create_task(self._take_back(settle))
            self._taking_back.add(task)
            task.add_done_callback(self._taking_back.discard)

    async def _take_back_step(self, settle: Settle, most_s: float) -> bool:
        """Make one step; whether there may be another."""
        word, seconds = settle.pace.next(time.monotonic())
        if word == "rest":
            await asyncio.sleep(min(seconds, most_s, 0.05 if self._closing else math.inf))
        elif word == "release":
            node, answered = self._nodes.get(settle.known), False
            with contextlib.suppress(HiSparseError):
                if node is not None:
                    await node.client.send(settle.release, timeout_s=self._settings.attempt_s, tries=1)
                    answered = True
            settle.pace.released(answered, time.monotonic())
        return word != "done"

    async def _take_back(self, settle: Settle) -> None:
        over: float | None = None
        try:
            while await self._take_back_step(settle, math.inf):
                if self._closing:
                    over = over or time.monotonic() + CLOSE_S
                    if time.monotonic() > over:
                        break
        finally:
            self._book.settle(settle.request, settle.known.number, done=True)

    async def rank(self, tokens: int = 0, *, pages: int = 0, prefix_hashes: Sequence[bytes] = ()) -> list[Ranked]:
        """As `hisparse_svc.fleet.Fleet.rank`."""
        await self._has_listed()
        return self._book.rank(tokens, pages, prefix_hashes)

    async def nodes(self) -> list[NodeView]:
        """As `hisparse_svc.fleet.Fleet.nodes`."""
        await self._has_listed()
        return self._book.views()

    async def client(self, name: str) -> clients.Client:
        """As `hisparse_svc.fleet.Fleet.client`."""
        await self._has_listed()
        known = self._book.named(name)
        if known not in self._nodes:
            raise Unreachable(known.failure or CLOSED)
        return self._nodes[known].client

    async def wait_until_seen(self, timeout_s: float = calls.TIMEOUT_S) -> bool:
        """As `hisparse_svc.fleet.Fleet.wait_until_seen`."""
        over = time.monotonic() + timeout_s
        await self._has_listed()
        while any(view.state == "unseen" for view in self._book.views()):
            if time.monotonic() > over:
                return False
            await asyncio.sleep(0.01)
        return True

    def check(self) -> None:
        """As `hisparse_svc.fleet.Fleet.check`."""
        self._book.check()

    @property
    def failure(self) -> HiSparseError | None:
        """As `hisparse_svc.fleet.Fleet.failure`."""
        return self._book.failure

    async def _has_listed(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.timeout_s):
                await self._listed.wait()

    def _from_thread(self, told: Any, *given: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know any more
            self._loop.call_soon_threadsafe(told, *given)

    def _take_members(self, members: tuple[Member, ...]) -> None:
        if self._closing:
            return
        joined, left = self._book.take_members(members)
        for known in joined:
            try:
                node = self._nodes[known] = _Node(self, known)
            except HiSparseError as failure:
                self._book.broken(known, failure)
                continue
            node.task = self._spawn(node.watch())
        for known in left:
            node_left = self._nodes.get(known)
            if node_left is not None:
                node_left.leave()
        self._listed.set()

    def _not_followed(self, failure: HiSparseError) -> None:
        self._book.failure = failure
        self._listed.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _forget(self, node: _Node) -> None:
        self._nodes.pop(node.known, None)
        closing = self._loop.create_task(node.client.close())
        self._taking_back.add(closing)
        closing.add_done_callback(self._taking_back.discard)

    async def _ping_all(self) -> None:
        while True:
            await asyncio.sleep(self._book.stale_after_s / 4)
            for known in self._book.due():
                node = self._nodes.get(known)
                if node is not None:
                    self._spawn(node.ping())

    async def close(self) -> None:
        """Close the connections; leases live on until they are released or end."""
        self._closing = True
        await asyncio.gather(*self._taking_back, return_exceptions=True)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(node.client.close() for node in self._nodes.values()))
        await asyncio.to_thread(self._follower.close)

    def _check_open(self) -> None:
        if self._closing:
            raise Unreachable(CLOSED)

    async def __aenter__(self) -> Fleet:
        """Give the fleet itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connections."""
        await self.close()


class _Node:
    """One node: its client, and the task that watches it."""

    def __init__(self, fleet: Fleet, known: Known) -> None:
        settings = fleet._settings
        self.fleet, self.known = fleet, known
        self.client = clients.Client(
            known.member.target, timeout_s=settings.timeout_s, tls=settings.tls_for(known.member.target)
        )
        self.holds = 0
        """Leases in callers' hands, and calls for one: the client of a node that has left lives as long."""
        self.task: asyncio.Task[None] | None = None

    async def watch(self) -> None:
        """Follow it until it leaves."""
        book = self.fleet._book
        watching = Watching(self.fleet._settings.lengths, math.inf)
        while True:
            error: HiSparseError = Unreachable(ENDED)
            try:
                async for message in self.client.stream(watching.call()):
                    seen = watching.feed(message)
                    if seen is None:
                        book.resumed(self.known)
                    else:
                        book.seen(self.known, seen)
            except HiSparseError as broken:
                error = broken
            await asyncio.sleep(book.broken(self.known, error))

    async def ping(self) -> None:
        """Ask a node whose stream is quiet whether it is still there."""
        book = self.fleet._book
        try:
            call = calls.get_capacity(self.fleet._settings.lengths)
            async with self.fleet._pingers:
                answer = await self.client.send(call, timeout_s=self.fleet._settings.attempt_s, tries=1)
        except HiSparseError as failure:
            if self.known.streaming:
                book.broken(self.known, failure, streaming=True)
        else:
            if self.known.streaming:
                book.seen(self.known, call.read(answer))

    def leave(self) -> None:
        """It is no member any more."""
        if self.task is not None:
            self.task.cancel()
        if self.holds == 0:
            self.fleet._forget(self)

    def hold(self, more: int) -> None:
        """Count a lease in or out."""
        self.holds += more
        if self.holds == 0 and self.known.left:
            self.fleet._forget(self)


class HeldLease(clients.HeldLease):
    """A lease in hand, as `hisparse_svc.fleet.sync.HeldLease`."""

    def __init__(self, node: _Node, admission: values.Admission, attempts: tuple[Attempt, ...], ends_at: float) -> None:
        super().__init__(node.client, admission)
        self.node, self.target = node.known.member.name, node.known.member.target
        self.attempts = attempts
        self._node, self._ends_at, self._released = node, ends_at, False

    async def commit(self, ttl_s: float | None = None) -> values.Lease:
        """Turn the reservation into use."""
        lease = await super().commit(ttl_s)
        self._ends_at = ends_at(lease, ttl_s)
        return lease

    async def renew(self, ttl_s: float | None = None) -> values.Lease:
        """Put off its end."""
        lease = await super().renew(ttl_s)
        self._ends_at = ends_at(lease, ttl_s)
        return lease

    async def release(self) -> values.Released:
        """Give it back."""
        released = await super().release()
        self._let_go()
        return released

    def leaving(self) -> Left:
        """Give it up for another one: what `Fleet.admit` needs of it."""
        self._let_go()
        return Left(self._node.known, self.lease, self._ends_at)

    def _let_go(self) -> None:
        if not self._released:
            self._released = True
            self._node.hold(-1)
