"""Following a directory in a thread of its own, for both shells."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING

from hisparse_svc.errors import HiSparseError
from hisparse_svc.fleet.settings import FOLLOW_REST_S
from hisparse_svc.rpc.backoff import Backoff
from hisparse_svc.rpc.refusals import Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from hisparse_svc.fleet.directories import Directory, Member


class Follower:
    """Follows a directory until it is closed, also past its failures.

    Args:
        directory: What to follow.
        told: Called with all members, at first and after every change; from the follower's thread.
        failed: Called with why it cannot be followed now.
        chance: Gives numbers from 0 to 1: routers that lose one directory together do not come back together.
    """

    def __init__(
        self,
        directory: Directory,
        told: Callable[[tuple[Member, ...]], None],
        failed: Callable[[HiSparseError], None],
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._directory, self._told, self._failed = directory, told, failed
        self._rests = Backoff(chance=chance)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="hisparse-fleet-directory", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while not self._closing.is_set():
            try:
                for members in self._directory.follow(self._closing):
                    if self._closing.is_set():
                        return
                    self._rests.succeeded()
                    self._told(members)
                return
            except HiSparseError as failure:
                self._failed(failure)
            except Exception as failure:  # a directory of the caller's own may raise anything
                self._failed(Unreachable(f"{self._directory} cannot be followed: {failure!r}; look at its code"))
            self._closing.wait(self._rests.failed(time.monotonic(), most_s=FOLLOW_REST_S))

    def close(self) -> None:
        """Stop; a directory that blocks ends in its own time."""
        self._closing.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=0.5)
