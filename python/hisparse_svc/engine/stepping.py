"""What surrounds a step's device work, eager or a replayed graph.

::

    begin    check ─ index keys of full pages to the host ─ seats of the batch to the device
    around   the device's work ──┬── lengths, what is durable
                                 └── it raised: nobody is further, and all start cold
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from hisparse_svc.engine.session_checks import check_step
from hisparse_svc.kernels.kinds import demand_kinds, each

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hisparse_svc.engine.decode_memory import DecodeMemory
    from hisparse_svc.engine.durability import Durability
    from hisparse_svc.engine.roster import Roster
    from hisparse_svc.engine.running import Running
    from hisparse_svc.kernels import StepPlan

__all__ = ["Stepping"]


class Stepping:
    """Steps of one session, as the host sees them."""

    def __init__(self, memory: DecodeMemory, roster: Roster, durability: Durability) -> None:
        self._memory, self._roster, self._durability = memory, roster, durability

    def begin(self, requests: Sequence[Running], batch: int) -> StepPlan:
        """Check a step, and put its seats where the device reads them.

        Args:
            requests: Who takes part.
            batch: Size of the batch; 0: as many as there are requests.

        Returns:
            The plan of the batch.

        Raises:
            NotRunning: A request has no seat.
            InvalidInput: A request named twice or without room, a batch too small, or a step is open.
            AttachFailed: The pool was closed.
        """
        self._memory.host.check_attached()
        self._roster.demand_no_step()
        demand_kinds(each(Sequence, requests=requests))
        for request in requests:
            self._roster.seat(request)
        batch = batch or len(requests)
        check_step(self._memory.shape, requests, batch)
        self._durability.confirm(requests)
        plan = self._memory.cache.plan.first(batch)
        seats = torch.full((batch,), -1, dtype=torch.int32)
        seats[: len(requests)] = torch.tensor([request.seat for request in requests], dtype=torch.int32)
        plan.seats.copy_(seats)
        return plan

    @contextmanager
    def around(self, requests: Sequence[Running], batch: int) -> Iterator[StepPlan]:
        """Surround the device work of one step; where it raises, nobody is taken further.

        Args:
            requests: As `begin`.
            batch: As `begin`.

        Raises:
            NotRunning: As `begin`.
            InvalidInput: As `begin`.
            AttachFailed: As `begin`.
        """
        plan = self.begin(requests, batch)
        self._roster.open = True
        try:
            yield plan
        except BaseException:
            for request in requests:  # what is hot is unknown now: start cold
                self._memory.cache.take_seat(self._roster.seat(request), request.pages, request.length)
            raise
        finally:
            self._roster.open = False
        if self._memory.meter is not None:
            self._memory.meter.steps += 1
        added = self._memory.shape.geometry.query_rows
        for request in requests:
            request.length += added
            request.refusable_tokens = added - 1
        if added == 1:
            self._durability.confirm(requests)  # no draft can be refused: lengths are final
        else:
            self._durability.record(requests)
        self._durability.settle(wait=False)
