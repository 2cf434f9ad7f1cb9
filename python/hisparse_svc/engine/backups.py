"""This step's new rows to host memory, beside the layers that follow.

::

    caller's stream   ── append (layer by layer) ──┬── next layers ──────────────┬──►
    side stream                                    └── backup of the group ──────┘   before the step's graph ends, or
                                                                                     `BackUp.wait` in eager mode

A new row is served from the newest page for the next `NEWEST_TOKENS` tokens, so nothing reads its host copy before
then. What must wait: whatever says that the row is durable, `park_seat`, and changes to lengths, page map or the plan's
seats, which the copy reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hisparse_svc.engine.hot_cache import HotCache
from hisparse_svc.errors import InvalidInput
from hisparse_svc.kernels import HostRows, backup
from hisparse_svc.kernels.kinds import demand_kinds, each

__all__ = ["BackUp", "back_up"]


@dataclass(frozen=True)
class BackUp:
    """A backup under way.

    Attributes:
        done: Recorded behind it; none on the CPU, where it is done already.
    """

    done: Any = None

    def wait(self) -> None:
        """Make the current stream wait for the host copy."""
        if self.done is not None:
            torch.cuda.current_stream(self.done.device).wait_event(self.done)


def back_up(
    cache: HotCache,
    group: int,
    host: HostRows,
    batch: int = 0,
    *,
    query_rows: int = 0,
    side_stream: Any = None,
    signal: Any = None,
) -> BackUp:
    """Copy the rows that this step appended, all layers of a group, to host memory.

    Args:
        cache: The hot cache; `cache.plan.seats` says whose rows.
        group: Group of layers, all of them appended.
        host: Its host rows.
        batch: Requests of the batch; 0: as many as the cache has seats.
        query_rows: New tokens of each request; 0: the geometry's.
        side_stream: Stream to copy on; the current one where not given.
        signal: An event to record behind the copy; made with `external=True`, every replay of a captured graph records
            it: what other ranks wait for before they read the rows.

    Raises:
        InvalidInput: Anything wrong with the arguments.
        DeviceUnavailable: The GPU cannot run the kernel.
        CompileFailed: The kernel does not compile.
    """
    demand_kinds(each(HotCache, cache=cache), each(HostRows, host=host), each(int, group=group, batch=batch))
    if problems := cache.host_problems(group, host):
        raise InvalidInput(problems)
    plan = cache.plan.first(batch) if batch else cache.plan

    def copy() -> None:
        rows = query_rows or cache.geometry.query_rows
        backup(cache.geometry, host, cache.rows[group], cache.state, plan, query_rows=rows)

    if cache.device.type != "cuda":
        copy()
        return BackUp()
    event: Any = torch.cuda.Event  # untyped in torch
    here = torch.cuda.current_stream(cache.device)
    stream = here if side_stream is None else side_stream
    appended, done = event(), event()
    appended.record(here)
    stream.wait_event(appended)
    with torch.cuda.stream(stream):
        copy()
        if signal is not None:
            signal.record(stream)  # in front of the edge back: a capture must join it
        done.record(stream)
    return BackUp(done)
