"""The trace that calls belong to: told once, sent with every call made meanwhile.

::

    with traced("00-…-…-01"):  ──► each call's metadata: traceparent ──► the service's log and exemplars

The header is that of W3C Trace Context, which tracing libraries give: what it holds is the service's to read.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["metadata", "traced"]

HEADER = "traceparent"

_parent: ContextVar[str | None] = ContextVar(HEADER, default=None)


@contextmanager
def traced(traceparent: str) -> Iterator[None]:
    """Send a trace context with every call made in the block, by this thread or asyncio task.

    Args:
        traceparent: As W3C Trace Context has it. The service ignores one that is malformed.

    Example:
        >>> import hisparse_svc
        >>> with hisparse_svc.Node.embedded() as node, hisparse_svc.traced("00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"):
        ...     node.client.admit(64).lease.pages
        1
    """
    token = _parent.set(traceparent)
    try:
        yield
    finally:
        _parent.reset(token)


def metadata() -> tuple[tuple[str, str], ...]:
    """Give what a call carries beside its message."""
    parent = _parent.get()
    return ((HEADER, parent),) if parent else ()
