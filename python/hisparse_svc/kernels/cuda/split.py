"""Picks of a step parted into hits and misses, on the current stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hisparse_svc.kernels.cuda.compile import load_kernel

if TYPE_CHECKING:
    from torch import Tensor

    from hisparse_svc.kernels.geometry import Geometry
    from hisparse_svc.kernels.split import SplitPicks
    from hisparse_svc.kernels.tensors import StepPlan

__all__ = ["split_picks"]

_SPLIT_THREADS = 1024


def split_picks(geometry: Geometry, plan: StepPlan, split: SplitPicks) -> None:
    """As `reference.split_picks`."""
    device = _device_of(plan.rows)
    constants = (
        ("PADDED", geometry.padded_rows),
        ("PICKS", geometry.picks),
        ("TOP_K", geometry.top_k),
        ("QUERY_ROWS", geometry.query_rows),
    )
    load_kernel(device, "split.cu", "split_picks", constants, threads=_SPLIT_THREADS, beside=True).launch(
        torch.cuda.current_stream(device),
        plan.batch * geometry.query_rows,
        plan.rows.data_ptr(),
        plan.misses.data_ptr(),
        plan.counts.data_ptr(),
        split.hits.rows.data_ptr(),
        split.hits.counts.data_ptr(),
        split.misses.rows.data_ptr(),
        split.misses.counts.data_ptr(),
    )


def _device_of(tensor: Tensor) -> int:
    index = tensor.device.index
    return torch.cuda.current_device() if index is None else int(index)
