"""What a session swaps in, counted on the device by layer group, for the service's metrics.

::

    resolve of a group ──► counts += rows picked, rows missing     on the caller's stream, in a captured graph too
    report, now and then ─► read once ──► HostPool.report_usage(swap_in=…)

It costs a few small kernels per group and step, so a session counts only where it is told to. What a step stands still
for is not measured here: `exposed_s` of `report_usage` is for an engine that times its steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hisparse_svc.kernels.tensors import lasting
from hisparse_svc.rpc.values import SwapInUsage

if TYPE_CHECKING:
    from torch import Tensor

    from hisparse_svc.engine.decode_shape import DecodeShape
    from hisparse_svc.engine.host_pool import HostPool
    from hisparse_svc.kernels import StepPlan

__all__ = ["SwapInMeter"]


class SwapInMeter:
    """Counts of one session since the last report.

    Attributes:
        steps: Steps since then, batches as they were run.
    """

    @lasting
    def __init__(self, shape: DecodeShape, device: torch.device | str) -> None:
        """Count nothing yet.

        Args:
            shape: Shape of the session.
            device: Where it decodes.
        """
        self.steps = 0
        self._layers = shape.layer_groups
        self._row_bytes = shape.row_format.row_bytes
        self._counts: Tensor = torch.zeros((len(self._layers), 2), dtype=torch.int64, device=device)

    def count(self, group: int, plan: StepPlan) -> None:
        """Count one group's plan, once it is resolved and before the next group takes its place."""
        picked, missing = torch.count_nonzero(plan.rows >= 0), plan.counts.sum()
        # A token that several query rows picked is copied once: the other reads are hits.
        self._counts[group, 0].add_(picked - missing)
        self._counts[group, 1].add_(missing)

    def take(self) -> tuple[SwapInUsage, ...]:
        """Give what was counted, and begin again; waits for the device."""
        counts = self._counts.tolist()
        self._counts.zero_()
        self.steps = 0
        return tuple(
            SwapInUsage(group, hit * layers, miss * layers, miss * layers * self._row_bytes)
            for group, ((hit, miss), layers) in enumerate(zip(counts, self._layers, strict=True))
        )

    def report(self, pool: HostPool, *, exposed_s: float | None = None) -> None:
        """Report to the service, and begin again; waits for the device, so once a second is often enough.

        Args:
            pool: The attached pool.
            exposed_s: Time that the steps stood still for rows on their way, where the engine knows it.

        Raises:
            HiSparseError: The service refuses, or cannot be reached; what was counted is lost.
        """
        steps = self.steps if exposed_s is not None else 0
        pool.report_usage(swap_in=self.take(), exposed_s=exposed_s, steps=steps)
