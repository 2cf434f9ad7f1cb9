"""Missing rows, host → hot rows. A token without a host page gives zeros, never what lay there before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hisparse_svc.kernels.geometry import PAGE_ROWS

if TYPE_CHECKING:
    from torch import Tensor

    from hisparse_svc.kernels.geometry import Geometry
    from hisparse_svc.kernels.host_rows import HostRows
    from hisparse_svc.kernels.tensors import SeatState, StepPlan

__all__ = ["gather"]


def gather(
    geometry: Geometry, host: HostRows, hot: Tensor, state: SeatState, plan: StepPlan, *, layers: range | None = None
) -> None:
    """Copy the plan's misses.

    Args:
        geometry: Shape of the hot cache.
        host: Rows of the group in host memory.
        hot: Its hot rows, `[layer, row, byte]`.
        state: Page maps of the seats.
        plan: A resolved plan.
        layers: Layers of the group to copy; all of them where none are named.
    """
    for layer in layers if layers is not None else range(host.layers):
        for misses, count in zip(plan.misses.tolist(), plan.counts.tolist(), strict=True):
            for token, row in misses[:count]:
                page = int(state.page_map[row // geometry.padded_rows, token // PAGE_ROWS])
                if 0 <= page < host.pages:
                    hot[layer, row] = host.view[page, token % PAGE_ROWS, layer]
                else:
                    hot[layer, row] = 0
