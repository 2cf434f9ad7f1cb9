"""One watch over as many streams as it takes: what both clients know of it between two of them.

::

    stream ─ messages ─► seen ─ breaks ─► rest ─► stream with the last resume token ─┬─ goes on: what changed meanwhile
                          ▲                 │                                        └─ resync: everything anew, and why
                          └──────────────────│──────────────────────────────────────────────────┘
                                            └─ nothing for `patience_s`: the error is raised
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from hisparse_svc.rpc import calls, convert
from hisparse_svc.rpc.refusals import Draining, Overloaded, Recovering, Unreachable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hisparse_svc._proto import capacity_pb2
    from hisparse_svc.errors import HiSparseError
    from hisparse_svc.rpc import values
    from hisparse_svc.rpc.calls import Call

ENDED = "the service ended the watch without a word; look into its log"
"""What a stream that ends in the middle is reported as."""

FIRST_REST_S = 0.05
LONGEST_REST_S = 1.0


class Watching:
    """What a watch has seen, and whether it goes on after its stream broke.

    Args:
        lengths: Lengths in tokens, answered in every message.
        patience_s: How long it tries to go on before it gives up.
        tenant: As whom; by default as one without settings that holds nothing.
    """

    def __init__(self, lengths: Iterable[int], patience_s: float, tenant: str = "") -> None:
        self._lengths = list(lengths)
        self._tenant = tenant
        self._patience_s = patience_s
        self._watched = convert.Watched()
        self._token = b""
        self._broken_at: float | None = None
        self._tries = 0

    def call(self) -> Call[capacity_pb2.WatchCapacityResponse, capacity_pb2.WatchCapacityResponse]:
        """Give the call that begins the watch, or goes on with it."""
        return calls.watch_capacity(self._lengths, self._token, self._tenant)

    def feed(self, message: capacity_pb2.WatchCapacityResponse) -> values.Capacity | None:
        """Take one message in; `None` where it says nothing new."""
        self._broken_at, self._tries = None, 0
        self._token = message.resume_token or self._token
        return self._watched.feed(message)

    @property
    def holds(self) -> bool:
        """Whether what was seen is still so."""
        return self._watched.holds

    def rest_s(self, error: HiSparseError) -> float | None:
        """Say how long to rest before the next stream, or that the error is the end.

        A watch that has not begun yet ends with its first error, as a call does.
        """
        if not self._token or not isinstance(error, (Unreachable, Overloaded, Draining, Recovering)):
            return None
        now = time.monotonic()
        if self._broken_at is None:
            self._broken_at = now
        rest = min(FIRST_REST_S * 2**self._tries, LONGEST_REST_S) * random.uniform(0.8, 1.2)  # noqa: S311 - jitter
        self._tries = min(self._tries + 1, 16)
        if isinstance(error, Overloaded):
            rest = max(rest, error.retry_after_s or 0.0)
        return rest if now - self._broken_at + rest < self._patience_s else None
