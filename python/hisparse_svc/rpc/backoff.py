"""How long to rest after a failure: twice as long each time, and drawn anew, so that nobody comes back in step.

::

    failures in a row      1          2        3        …
    rest, in seconds    0.5 to 1   1 to 2   2 to 4   …  up to a bound     longer where the server asks for it
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_REST_S, LONGEST_REST_S = 1.0, 60.0
"""Longest rest after the first failure, and after any."""
LATER = 0.2
"""Share of the rest that a server asks for by which it may come later."""


class Backoff:
    """The rests of one thing that is tried again.

    Args:
        chance: Gives numbers from 0 to 1.
    """

    def __init__(self, *, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self.failures = 0
        self.until = 0.0

    def failed(self, now: float, retry_after_s: float | None = None, most_s: float = LONGEST_REST_S) -> float:
        """Give the seconds to rest: at most `most_s`, but as long as the server asks, up to `LONGEST_REST_S`."""
        rest = min(FIRST_REST_S * 2.0 ** min(self.failures, 16), most_s) * (1 + self._chance()) / 2
        if retry_after_s is not None:
            rest = max(rest, min(retry_after_s, LONGEST_REST_S) * (1 + LATER * self._chance()))
        self.failures += 1
        self.until = now + rest
        return rest

    def succeeded(self) -> int:
        """Begin anew; give how many failures there were."""
        failures, self.failures, self.until = self.failures, 0, 0.0
        return failures
