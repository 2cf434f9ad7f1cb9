"""The node that is published, as its publisher sees it: a watch for what it has, and a ping for whether it grants.

::

    WatchCapacity ─► capacity ─┐
    readiness, every second ───┼─► Condition: Serving, Draining, Recovering, Unreachable
    GetServerInfo, per run ────┘

A node that hangs keeps its stream open, and so does an idle one: the ping tells them apart.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from hisparse_svc.errors import HiSparseError
from hisparse_svc.kube.objects import DRAINING, RECOVERING, SERVING, UNREACHABLE, Condition
from hisparse_svc.rpc import health
from hisparse_svc.rpc.watching import ENDED, Watching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hisparse_svc.client import Client
    from hisparse_svc.rpc import values

PING_S = 1.0
"""Between two looks at whether it grants."""
ANSWER_S = 2.0
"""Longest that it may take to answer one."""
SILENT_S = 5.0
"""Without an answer for so long it is unreachable."""
RESTS_S = (0.25, 0.5, 1.0, 2.0)
"""Between two tries to open its watch."""

NOT_READY = "it grants nothing yet: its pool is being made, earlier leases have yet to end, or it is stopping"


class FollowedNode:
    """A node, followed by two threads until it is closed.

    Args:
        client: A client to it; closed with this.
        lengths: Lengths in tokens that are answered in `fits`.
        changed: Called, from either thread, after every word of it.
    """

    def __init__(self, client: Client, lengths: Iterable[int], changed: Callable[[], None]) -> None:
        self._client, self._lengths, self._changed = client, tuple(lengths), changed
        self._lock = threading.Lock()
        self._capacity: values.Capacity | None = None
        self._info: values.ServerInfo | None = None
        self._ready = False
        self._heard_at: float | None = None
        self._failure = ""
        self._closing = threading.Event()
        names = {"hisparse-publish-watch": self._watch, "hisparse-publish-ping": self._ping}
        self._threads = [threading.Thread(target=work, name=name, daemon=True) for name, work in names.items()]
        for thread in self._threads:
            thread.start()

    def condition(self) -> Condition:
        """Give the node as it is known now."""
        with self._lock:
            state, reason = self._state(time.monotonic())
            return Condition(state, reason, self._capacity, self._info)

    def _state(self, now: float) -> tuple[str, str]:
        if self._heard_at is None or now - self._heard_at > SILENT_S:
            return UNREACHABLE, self._failure or "it has said nothing yet"
        if self._capacity is None or self._info is None:
            return RECOVERING, self._failure or "its watch has brought nothing yet"
        if self._capacity.draining:
            return DRAINING, "an operator drains it"
        return (SERVING, "") if self._ready else (RECOVERING, NOT_READY)

    def _watch(self) -> None:
        watching, tries = Watching(self._lengths, 0.0), 0
        while not self._closing.is_set():
            failure: str = ENDED
            try:
                for message in self._client.stream(watching.call()):
                    tries = 0
                    self._take(watching.feed(message))
                    if self._closing.is_set():
                        return
            except HiSparseError as broken:
                failure = str(broken)
            with self._lock:
                self._failure = failure
            self._closing.wait(RESTS_S[min(tries, len(RESTS_S) - 1)])
            tries += 1

    def _take(self, seen: values.Capacity | None) -> None:
        if seen is None:
            return
        with self._lock:
            anew = self._capacity is not None and self._capacity.epoch != seen.epoch
            self._capacity = seen
            if anew:
                self._info = None  # another run of the service, perhaps another version of it
        self._changed()

    def _ping(self) -> None:
        call, told = health.ready(), ""
        while not self._closing.is_set():
            try:
                ready = call.read(self._client.send(call, timeout_s=ANSWER_S, tries=1))
                info = self._client.server_info() if self._info is None else None
                with self._lock:
                    self._ready, self._heard_at, self._failure = ready, time.monotonic(), ""
                    self._info = info or self._info
            except HiSparseError as failure:
                with self._lock:
                    self._failure = str(failure)
            state = self.condition().state
            if state != told:
                told = state
                self._changed()
            self._closing.wait(PING_S)

    def close(self) -> None:
        """Stop following it."""
        self._closing.set()
        self._client.close()
        for thread in self._threads:
            thread.join(timeout=ANSWER_S)
