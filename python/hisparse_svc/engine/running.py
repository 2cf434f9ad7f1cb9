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
    """The request has no seat here; the text says what to do."""


@dataclass(eq=False)
class Running:
    """A request that a session decodes.

    Attributes:
        pages: Its host pages, in token order.
        length: Tokens it has, those of the last step included.
        context_tokens: Longest a request of its session may be.
        first_own_token: The first token that it may write; those before it lie in pages that it shares.
        lease: What reserves its pages; none in a session without a service.
        seat: Its seat; none while it is retracted.
        parked: What `resume` needs; none while it runs.
        durable_tokens: Tokens whose rows and index keys are known to be in host memory, in whole pages.
        refusable_tokens: Tokens of its last step that `take_back` may still take.
        backed_up_pages: Leading pages whose index keys were copied to host memory.
    """

    pages: tuple[int, ...]
    length: int
    context_tokens: int
    first_own_token: int = 0
    lease: Lease | None = None
    seat: int | None = None
    parked: ParkedSeat | None = field(default=None, repr=False)
    durable_tokens: int = 0
    refusable_tokens: int = 0
    backed_up_pages: int = field(default=0, repr=False)

    @property
    def room_tokens(self) -> int:
        """Tokens that its pages hold."""
        return len(self.pages) * PAGE_ROWS

    @property
    def limit_tokens(self) -> int:
        """Tokens it may have: its lease's, what its pages hold, or the longest context."""
        limit = min(self.room_tokens, self.context_tokens)
        return min(self.lease.tokens, limit) if self.lease else limit
