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
from typing import TYPE_CHECKING, Any, Unpack

from hisparse_svc import aio as clients
from hisparse_svc.errors import HiSparseError
from hisparse_svc.fleet.aio_node import HeldLease, Node
from hisparse_svc.fleet.following import Follower
from hisparse_svc.fleet.journey import Ask, Journey, Rest, Settle
from hisparse_svc.fleet.settings import CLOSE_S
from hisparse_svc.fleet.shell import Shell
from hisparse_svc.rpc import values

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Sequence

    from hisparse_svc.fleet import settings as reading
    from hisparse_svc.fleet.book import Known, NodeView, Ranked
    from hisparse_svc.fleet.directories import Directory, Member

__all__ = ["Fleet", "HeldLease"]

PINGERS = 32
"""Pings under way at once."""


class Fleet(Shell[Node]):
    """Many nodes as one; make it inside the event loop that uses it.

    Arguments are those of `hisparse_svc.fleet.Fleet`.
    """

    _listed: asyncio.Event

    def __init__(self, nodes: str | Iterable[str | Member] | Directory, **fields: Unpack[reading.Fields]) -> None:
        super().__init__(nodes, **fields)
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._taking_back: set[asyncio.Task[Any]] = set()
        """What a close waits for."""
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
        wait_s: float = 0.0,
        instead_of: HeldLease | None = None,
        **fields: Unpack[values.RequestFields],
    ) -> clients.PendingLease[HeldLease]:
        """As `hisparse_svc.fleet.Fleet.admit`: await it for the lease, or `async with` it to release the lease too."""
        request = values.Request(prompt_tokens=prompt_tokens, max_new_tokens=max_new_tokens, **fields)
        return clients.PendingLease(self._admit(request, wait_s, instead_of))

    async def _admit(self, request: values.Request, wait_s: float, instead_of: HeldLease | None) -> HeldLease:
        await self._has_listed()
        journey = self.journey(request, wait_s=wait_s, instead_of=instead_of)
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
        node = self._to_ask(journey, known)
        if node is None:
            return None
        admission = None
        with self._asking(journey, known, node):
            answer = await node.client.send(journey.call, timeout_s=journey.attempt_s, tries=1)
            admission = journey.call.read(answer)
        if admission is None:  # the journey knows why
            return None
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
            await asyncio.sleep(min(seconds, most_s, 0.05 if self._closing.is_set() else math.inf))
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
                if self._closing.is_set():
                    over = over or time.monotonic() + CLOSE_S
                    if time.monotonic() > over:
                        break
        finally:
            self._settled(settle)

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
        return self._named(name).client

    async def wait_until_seen(self, timeout_s: float | None = None) -> bool:
        """As `hisparse_svc.fleet.Fleet.wait_until_seen`."""
        timeout_s = self._settings.timeout_s if timeout_s is None else timeout_s
        over = time.monotonic() + timeout_s
        if not await self._has_listed(timeout_s):
            return False
        while any(view.state == "unseen" for view in self._book.views()):
            if time.monotonic() > over:
                return False
            await asyncio.sleep(0.01)
        return True

    async def _has_listed(self, timeout_s: float | None = None) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s() if timeout_s is None else timeout_s):
                return await self._listed.wait()
        return False

    def _from_thread(self, told: Any, *given: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know any more
            self._loop.call_soon_threadsafe(told, *given)

    def _make(self, known: Known) -> Node:
        return Node(known, self._book, self._settings, pingers=self._pingers, spawn=self._spawn, forget=self._forget)

    def _take_members(self, members: tuple[Member, ...]) -> None:
        if not self._closing.is_set():
            super()._take_members(members)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _forget(self, node: Node) -> None:
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
        self._closing.set()
        await asyncio.gather(*self._taking_back, return_exceptions=True)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(node.client.close() for node in self._nodes.values()))
        await asyncio.to_thread(self._follower.close)

    async def __aenter__(self) -> Fleet:
        """Give the fleet itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connections."""
        await self.close()
