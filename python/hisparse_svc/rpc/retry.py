"""Whether to send a call again, and when. Every call of the interface may be repeated, so a lost answer costs no lease.

::

    no connection, overloaded ─► again after 0.05 s, then double (or what the server says), within the deadline
    any other refusal         ─► no: the answer would be the same
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from hisparse_svc.rpc.refusals import NoAnswer, Overloaded, Unreachable

if TYPE_CHECKING:
    from hisparse_svc.errors import HiSparseError

TRIES = 4
FIRST_DELAY_S = 0.05


def delay_s(error: HiSparseError, tries: int, left_s: float, most: int = TRIES) -> float | None:
    """Give the rest before the next try.

    Args:
        error: How the last try ended.
        tries: Tries made so far.
        left_s: Seconds until the call's deadline.
        most: Tries of the call in all.

    Returns:
        Seconds, or `None` where the error is the answer.
    """
    if tries >= most or isinstance(error, NoAnswer) or not isinstance(error, (Unreachable, Overloaded)):
        return None
    rest = FIRST_DELAY_S * 2 ** (tries - 1) * random.uniform(0.8, 1.2)  # noqa: S311 - jitter, not a secret
    if isinstance(error, Overloaded):
        rest = max(rest, error.retry_after_s or 0.0)
    return rest if rest < left_s else None
