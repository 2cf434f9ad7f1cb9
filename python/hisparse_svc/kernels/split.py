"""A resolved step's rows in two parts: those that were hot, and those that the gather is to bring.

::

    plan.rows    [ 7 │ 3 │ -1 │ 9 │ 4 ]      plan.misses  (…, 3) (…, 4)
    hits.rows    [ 7 │ 9 │ … ]   2           misses.rows  [ 3 │ 4 │ … ]   2       behind a count: undefined

`resolve` fills it on request; attention takes the hits while the gather brings the misses. A part keeps an order of its
own, the same each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hisparse_svc.kernels.devices import usable_device
from hisparse_svc.kernels.geometry import MAX_BATCH, Geometry
from hisparse_svc.kernels.kinds import demand_kinds, each
from hisparse_svc.kernels.tensors import PAIR_BYTES, check_batch, lasting, nbytes

if TYPE_CHECKING:
    from torch import Tensor

    from hisparse_svc.kernels.checks import Checks

__all__ = ["PickPart", "SplitPicks"]


@dataclass(frozen=True)
class PickPart:
    """Some of the picks of a step, as `sparse_mla_decode` takes them.

    Attributes:
        rows: Hot rows, `i32 [batch, query row, top_k]`.
        counts: How many leading ones count, `i32 [batch, query row]`.
    """

    rows: Tensor
    counts: Tensor

    @staticmethod
    def allocate(geometry: Geometry, batch: int, device: torch.device | str) -> PickPart:
        """Make an empty one."""
        shape = (batch, geometry.query_rows, geometry.top_k)
        return PickPart(
            torch.full(shape, -1, dtype=torch.int32, device=device),
            torch.zeros(shape[:2], dtype=torch.int32, device=device),
        )


@dataclass(frozen=True)
class SplitPicks:
    """Both parts of a step, at fixed addresses.

    Attributes:
        hits: Rows that were hot, the newest ones among them.
        misses: Rows on their way.
        copies: For the gather, on a GPU: host row and hot row of each of the plan's misses, `i32 [batch, picks, 2]`.
    """

    hits: PickPart
    misses: PickPart
    copies: Tensor

    @staticmethod
    @lasting
    def allocate(geometry: Geometry, batch: int, device: torch.device | str) -> SplitPicks:
        """Make the parts of `batch` requests.

        Raises:
            InvalidInput: No request, more than one call takes, or a device that is none.
            DeviceUnavailable: A GPU that is not here.
        """
        demand_kinds(each(Geometry, geometry=geometry))
        check_batch(batch, 1, max(MAX_BATCH, geometry.seats), "split the batch")
        device = usable_device(device)
        copies = torch.zeros((batch, geometry.picks, 2), dtype=torch.int32, device=device)
        parts = [PickPart.allocate(geometry, batch, device) for _ in range(2)]
        return SplitPicks(parts[0], parts[1], copies)

    def first(self, batch: int) -> SplitPicks:
        """Give the part for the first `batch` requests; it shares memory with this one.

        Raises:
            InvalidInput: It is of fewer.
        """
        check_batch(batch, 0, int(self.copies.shape[0]), "allocate the parts of a larger batch")
        hits, misses = (PickPart(part.rows[:batch], part.counts[:batch]) for part in (self.hits, self.misses))
        return SplitPicks(hits, misses, self.copies[:batch])

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return nbytes(self.hits.rows, self.hits.counts, self.misses.rows, self.misses.counts, self.copies)

    def check(self, check: Checks, geometry: Geometry, batch: int) -> None:
        """Record what is wrong with it for so many requests."""
        shape = (batch, geometry.query_rows, geometry.top_k)
        remedy = "allocate it with SplitPicks.allocate, and take its first(batch)"
        for name, part in (("hits", self.hits), ("misses", self.misses)):
            check.tensor(f"{name}.rows", part.rows, shape, torch.int32, remedy)
            check.tensor(f"{name}.counts", part.counts, shape[:2], torch.int32, remedy)
        shape = (batch, geometry.picks, 2)
        check.tensor("copies", self.copies, shape, torch.int32, remedy, align_bytes=PAIR_BYTES)
