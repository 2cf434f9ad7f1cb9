"""One node of the blocking fleet: its client, the thread that watches it, and leases on it.

::

    watch: stream ─ messages ─► Book.seen, resumed ─ breaks ─► Book.broken ─► rest, then the same again: the probe
    ping:  GetCapacity, where the stream has been quiet for long
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

from hisparse_svc import client as clients
from hisparse_svc.errors import HiSparseError
from hisparse_svc.fleet.journey import ends_at
from hisparse_svc.fleet.shell import OnNode
from hisparse_svc.rpc import calls, values
from hisparse_svc.rpc.refusals import Unreachable
from hisparse_svc.rpc.watching import ENDED, Watching

if TYPE_CHECKING:
    from collections.abc import Callable

    from hisparse_svc.fleet.book import Book, Known
    from hisparse_svc.fleet.errors import Attempt
    from hisparse_svc.fleet.settings import Settings


class Node:
    """One node: its client, and the thread that watches it."""

    def __init__(
        self, known: Known, book: Book, settings: Settings, closing: threading.Event, forget: Callable[[Node], None]
    ) -> None:
        self.known, self._book, self._settings, self._closing, self._forget = known, book, settings, closing, forget
        self._lock = threading.Lock()
        self.client = clients.Client(
            known.member.target, timeout_s=settings.timeout_s, tls=settings.tls_for(known.member.target)
        )
        self.holds = 0
        """Leases in callers' hands, and calls for one: the client of a node that has left lives as long."""
        self._left = threading.Event()
        self.thread = threading.Thread(target=self._watch, name=f"hisparse-fleet-{known.number}", daemon=True)

    def start(self) -> None:
        """Begin to watch it."""
        self.thread.start()

    def _watch(self) -> None:
        book, closing = self._book, self._closing
        watching = Watching(self._settings.lengths, math.inf)
        while not (closing.is_set() or self._left.is_set()):
            error: HiSparseError = Unreachable(ENDED)
            try:
                for message in self.client.stream(watching.call()):
                    seen = watching.feed(message)
                    if self._left.is_set():
                        return
                    if seen is not None:
                        book.seen(self.known, seen)
                    elif watching.holds:
                        book.resumed(self.known)
            except HiSparseError as broken:
                error = broken
            if not closing.is_set():
                self._left.wait(book.broken(self.known, error))

    def ping(self) -> None:
        """Ask a node whose stream is quiet whether it is still there."""
        book = self._book
        try:
            call = calls.get_capacity(self._settings.lengths)
            answer = self.client.send(call, timeout_s=self._settings.attempt_s, tries=1)
        except HiSparseError as failure:
            if self.known.streaming:
                book.broken(self.known, failure, streaming=True)
        else:
            if self.known.streaming:
                book.seen(self.known, call.read(answer))

    def leave(self) -> None:
        """It is no member any more."""
        self._left.set()
        with self._lock:
            unused = self.holds == 0
        if unused:
            self.client.close()
            self._forget(self)

    def hold(self, more: int) -> None:
        """Count a lease in or out."""
        with self._lock:
            self.holds += more
            last = self.holds == 0 and self._left.is_set()
        if last:
            self.client.close()
            self._forget(self)


class HeldLease(OnNode, clients.HeldLease):
    """A lease in hand, as `hisparse_svc.client.HeldLease`.

    Attributes:
        node: Name of the node that it is on: send the request there.
        target: Where that node's service is.
        attempts: The nodes that were asked before and did not take it.
    """

    def __init__(self, node: Node, admission: values.Admission, attempts: tuple[Attempt, ...], ends_at: float) -> None:
        super().__init__(node.client, admission)
        self._place(node, attempts, ends_at)

    def commit(self, ttl_s: float | None = None) -> values.Lease:
        """Turn the reservation into use."""
        lease = super().commit(ttl_s)
        self._ends_at = ends_at(lease, ttl_s)
        return lease

    def renew(self, ttl_s: float | None = None) -> values.Lease:
        """Put off its end."""
        lease = super().renew(ttl_s)
        self._ends_at = ends_at(lease, ttl_s)
        return lease

    def release(self) -> values.Released:
        """Give it back."""
        released = super().release()
        self._let_go()
        return released
