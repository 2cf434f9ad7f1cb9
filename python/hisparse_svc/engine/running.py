"""One request in a decode session.

::

    join ──► running, on a seat ──► leave
               │         ▲
            retract   resume          off its seat it keeps its lease, its pages and its index keys
               ▼         │
             parked ─────┘──► leave
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hisparse_svc.errors import HiSparseError
from hisparse_svc.kernels import PAGE_ROWS

if TYPE_CHECKING:
    from hisparse_svc.engine.parking import ParkedSeat
    from hisparse_svc.rpc.values import Lease

__all__ = ["NotRunning", "Running"]


class NotRunning(HiSparseError):
    """The request has no seat: it left, was retracted, or belongs to another session."""


@dataclass(eq=False)
class Running:
    """A request that a session decodes.

    Attributes:
        pages: Its host pages, in token order.
        length: Tokens it has, those of the last step included.
        lease: What reserves them; none in a session without a service.
        seat: Its seat; none while it is retracted.
        parked: What `resume` needs; none while it runs.
        durable_tokens: Tokens whose rows are known to be in host memory; index keys in whole pages.
        backed_up_pages: Leading pages whose index keys were copied to host memory.
    """

    pages: tuple[int, ...]
    length: int
    lease: Lease | None = None
    seat: int | None = None
    parked: ParkedSeat | None = None
    durable_tokens: int = 0
    backed_up_pages: int = field(default=0, repr=False)

    @property
    def room_tokens(self) -> int:
        """Tokens that its pages hold."""
        return len(self.pages) * PAGE_ROWS

    @property
    def limit_tokens(self) -> int:
        """Tokens it may have: its lease's, or what its pages hold."""
        return min(self.lease.tokens, self.room_tokens) if self.lease else self.room_tokens
