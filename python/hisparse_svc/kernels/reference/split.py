"""Rows of a resolved plan, parted by whether they are among its misses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from hisparse_svc.kernels.geometry import Geometry
    from hisparse_svc.kernels.split import SplitPicks
    from hisparse_svc.kernels.tensors import StepPlan

__all__ = ["split_picks"]


def split_picks(geometry: Geometry, plan: StepPlan, split: SplitPicks) -> None:
    """Fill both parts, on any device."""
    for request, count in enumerate(plan.counts.tolist()):
        missing = plan.misses[request, :count, 1]
        for query_row in range(geometry.query_rows):
            rows = plan.rows[request, query_row]
            on_its_way = torch.isin(rows, missing)
            for part, chosen in ((split.hits, rows[(rows >= 0) & ~on_its_way]), (split.misses, rows[on_its_way])):
                part.rows[request, query_row, : len(chosen)] = chosen
                part.counts[request, query_row] = len(chosen)
