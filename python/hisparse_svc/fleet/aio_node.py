"""One node of the asyncio fleet: its client, the task that watches it, and leases on it; as `sync_node`."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

from hisparse_svc import aio as clients
from hisparse_svc.errors import HiSparseError
from hisparse_svc.fleet.journey import ends_at
from hisparse_svc.fleet.shell import OnNode
from hisparse_svc.rpc import calls, values
from hisparse_svc.rpc.refusals import Unreachable
from hisparse_svc.rpc.watching import ENDED, Watching

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hisparse_svc.fleet.book import Book, Known
    from hisparse_svc.fleet.errors import Attempt
    from hisparse_svc.fleet.settings import Settings


class Node:
    """One node: its client, and the task that watches it."""

    def __init__(
        self,
        known: Known,
        book: Book,
        settings: Settings,
        *,
        pingers: asyncio.Semaphore,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        forget: Callable[[Node], None],
    ) -> None:
        self.known, self._book, self._settings, self._pingers = known, book, settings, pingers
        self._spawn, self._forget = spawn, forget
        self.client = clients.Client(
            known.member.target, timeout_s=settings.timeout_s, tls=settings.tls_for(known.member.target)
        )
        self.holds = 0
        """Leases in callers' hands, and calls for one: the client of a node that has left lives as long."""
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch it."""
        self.task = self._spawn(self._watch())

    async def _watch(self) -> None:
        book = self._book
        watching = Watching(self._settings.lengths, math.inf)
        while True:
            error: HiSparseError = Unreachable(ENDED)
            try:
                async for message in self.client.stream(watching.call()):
                    seen = watching.feed(message)
                    if seen is not None:
                        book.seen(self.known, seen)
                    elif watching.holds:
                        book.resumed(self.known)
            except HiSparseError as broken:
                error = broken
            await asyncio.sleep(book.broken(self.known, error))

    async def ping(self) -> None:
        """Ask a node whose stream is quiet whether it is still there."""
        book = self._book
        try:
            call = calls.get_capacity(self._settings.lengths)
            async with self._pingers:
                answer = await self.client.send(call, timeout_s=self._settings.attempt_s, tries=1)
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
            self._forget(self)

    def hold(self, more: int) -> None:
        """Count a lease in or out."""
        self.holds += more
        if self.holds == 0 and self.known.left:
            self._forget(self)


class HeldLease(OnNode, clients.HeldLease):
    """A lease in hand, as `hisparse_svc.fleet.HeldLease`."""

    def __init__(self, node: Node, admission: values.Admission, attempts: tuple[Attempt, ...], ends_at: float) -> None:
        super().__init__(node.client, admission)
        self._place(node, attempts, ends_at)

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
