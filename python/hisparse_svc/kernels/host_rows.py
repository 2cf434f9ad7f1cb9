"""Where one group's rows lie in host memory.

::

    base ─► [page 0: row 0 [layer 0 │ layer 1 │ …] row 1 […] … row 63 […]] [page 1 …]
             ├─ row_bytes ─┤
             ├─ layer pitch ─┤            row pitch: from one token's rows to the next token's
             ├─────────────── page pitch ───────────────┤

Layers that share an index lie side by side, so one missed token is one run of bytes. Pitches are free: layer-first
pools (`layers` = 1), rows at strides of 64 or 128 bytes, and pages of other groups in between all fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kernels.devices import demand_cuda
from hisparse_svc.kernels.geometry import PAGE_ROWS
from hisparse_svc.kernels.kinds import demand_kinds, each
from hisparse_svc.kernels.tensors import lasting

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CHUNK_BYTES", "HostRows"]

CHUNK_BYTES = 16
"""What one thread moves at once; rows, pitches and bases are multiples of it."""

_MAX_PAGES = 2**32 // PAGE_ROWS


@dataclass(frozen=True)
class HostRows:
    """Rows of one group of layers in host memory.

    Attributes:
        view: Bytes as `[page, row of the page, layer, byte of the row]`, strided as the pool lies. On a machine with
            CUDA the memory must be page-locked and mapped (`HostPool` registers it).
        read_only: The process maps it for reading alone; nothing is backed up to it.
    """

    view: Tensor
    read_only: bool = False

    def __post_init__(self) -> None:
        demand_kinds(each(torch.Tensor, host=self.view))
        if problems := _problems(self.view):
            raise InvalidInput(problems)

    @property
    def pages(self) -> int:
        """Pages of the pool."""
        return int(self.view.shape[0])

    @property
    def layers(self) -> int:
        """Layers of the group."""
        return int(self.view.shape[2])

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in one layer."""
        return int(self.view.shape[3])

    @property
    def page_pitch(self) -> int:
        """Bytes from one page's start to the next."""
        return int(self.view.stride(0))

    @property
    def row_pitch(self) -> int:
        """Bytes from one token's rows to the next token's."""
        return int(self.view.stride(1))

    @property
    def layer_pitch(self) -> int:
        """Bytes from one layer's row to the next layer's row of the same token."""
        return int(self.view.stride(2))

    @staticmethod
    @lasting
    def allocate(pages: int, layers: int, row_bytes: int, *, stride_bytes: int = 0, pinned: bool = False) -> HostRows:
        """Make a pool of one group for tests and benchmarks; a service's pool comes from `HostPool`.

        Args:
            pages: Pages of it.
            layers: Layers of the group, side by side.
            row_bytes: Bytes of one row in one layer.
            stride_bytes: Bytes from one layer's row to the next; 0 packs them.
            pinned: Page-lock it for CUDA.

        Raises:
            InvalidInput: Bytes that kernels cannot move.
            DeviceUnavailable: There is no CUDA to page-lock it for.
        """
        numbers = {"pages": pages, "layers": layers, "row_bytes": row_bytes, "stride_bytes": stride_bytes}
        demand_kinds(each(int, **numbers))
        problems = [
            Problem(name, str(value), "must be at least 1", "give what the pool is to hold")
            for name, value in numbers.items()
            if value < 1 and name != "stride_bytes"
        ]
        if stride_bytes and stride_bytes < row_bytes:
            rule = f"must be at least {row_bytes}, the bytes of a row"
            problems.append(Problem("stride_bytes", str(stride_bytes), rule, "leave it out: rows are then packed"))
        if problems:
            raise InvalidInput(problems)
        if pinned:
            demand_cuda("leave pinned out")
        stride = stride_bytes or row_bytes
        whole = torch.empty((pages, PAGE_ROWS, layers, stride), dtype=torch.uint8, pin_memory=pinned)
        return HostRows(whole[..., :row_bytes])


def _problems(view: Tensor) -> list[Problem]:
    problems: list[Problem] = []

    def refuse(field: str, value: object, rule: str, remedy: str) -> None:
        problems.append(Problem(f"host.{field}", str(value), rule, remedy))

    if view.layout is not torch.strided:
        refuse("layout", view.layout, "must be torch.strided", "call to_dense()")
        return problems
    if view.dtype is not torch.uint8:
        refuse("dtype", view.dtype, "must be torch.uint8", "view the pool as bytes")
    if view.device.type != "cpu":
        refuse("device", view.device, "must be host memory", "pass the host pool, not the hot rows")
    if view.dim() != 4 or view.shape[1] != PAGE_ROWS:
        rule = f"must be [pages, {PAGE_ROWS}, layers, row bytes]"
        refuse("shape", tuple(view.shape), rule, "reshape the pool's view")
        return problems
    if view.stride(3) != 1:
        refuse("stride", view.stride(), "must have the bytes of a row side by side", "make the last stride 1")
    if 0 in view.shape:
        refuse("shape", tuple(view.shape), "must hold at least one row", "attach a pool that is not empty")
        return problems
    if view.shape[0] >= _MAX_PAGES:
        rule = f"must be below {_MAX_PAGES:,}: kernels number the rows of a pool in 32 bits"
        refuse("pages", view.shape[0], rule, "split the pool")
    for name, value in (
        ("row_bytes", view.shape[3]),
        ("layer_pitch", view.stride(2)),
        ("row_pitch", view.stride(1)),
        ("page_pitch", view.stride(0)),
        ("address", view.data_ptr()),
    ):
        if value % CHUNK_BYTES:
            refuse(name, value, f"must be a multiple of {CHUNK_BYTES}", "align the rows of the pool")
    layer_pitch = view.stride(2) if view.shape[2] > 1 else view.shape[3]
    run_bytes = layer_pitch * (view.shape[2] - 1) + view.shape[3]
    page_bytes = view.stride(1) * (PAGE_ROWS - 1) + run_bytes
    page_pitch = view.stride(0) if view.shape[0] > 1 else page_bytes
    if layer_pitch < view.shape[3] or view.stride(1) < run_bytes or page_pitch < page_bytes:
        refuse("stride", view.stride(), "must not let rows overlap", "take the pitches from the pool's layout")
    return problems
