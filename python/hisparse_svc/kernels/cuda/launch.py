"""The kernels as functions of tensors. Arguments are checked by `hisparse_svc.kernels`, which calls these."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from hisparse_svc.kernels.cuda.arguments import device_of, i32, i64
from hisparse_svc.kernels.cuda.compile import Kernel, load_kernel, shared_memory_bytes
from hisparse_svc.kernels.cuda.shapes import gather_constants, geometry_constants, resolver_for, row_constants
from hisparse_svc.kernels.placement import GATHER_BINS, ORDER_FROM_ROWS, gather_threads

if TYPE_CHECKING:
    from torch import Tensor

    from hisparse_svc.kernels.cuda.shapes import Resolver
    from hisparse_svc.kernels.geometry import Geometry
    from hisparse_svc.kernels.host_rows import HostRows
    from hisparse_svc.kernels.split import SplitPicks
    from hisparse_svc.kernels.tensors import SeatState, StepPlan

__all__ = ["append", "backup", "backup_pages", "gather", "resolve", "resolve_kernel"]

_COPY_THREADS = 512
_COPY_WARPS = _COPY_THREADS // 32
_BACKUP_BLOCKS = 16


def resolve_kernel(device: int, resolver: Resolver) -> Kernel:
    """Give a compiled resolver."""
    return load_kernel(
        device,
        resolver.source,
        "resolve",
        resolver.constants,
        threads=resolver.threads,
        shared_bytes=resolver.shared_bytes,
    )


def resolve(
    geometry: Geometry,
    words: Tensor,
    state: SeatState,
    plan: StepPlan,
    *,
    split: SplitPicks | None = None,
    resolver: Resolver | None = None,
) -> None:
    """As `reference.resolve`, on the current stream; `resolver` forces a kernel."""
    device = device_of(words)
    chosen = resolver or resolver_for(geometry, shared_memory_bytes(device), parted=split is not None)
    parts: tuple[Tensor, ...] = ()
    if split is not None:
        parts = (split.hits.rows, split.hits.counts, split.misses.rows, split.misses.counts)
        parts += (state.page_map, split.copies)
    resolve_kernel(device, chosen).launch(
        torch.cuda.current_stream(device),
        plan.batch,
        plan.seats.data_ptr(),
        plan.picks.data_ptr(),
        state.lengths.data_ptr(),
        state.newest_from.data_ptr(),
        words.data_ptr(),
        plan.rows.data_ptr(),
        plan.misses.data_ptr(),
        plan.counts.data_ptr(),
        i32(geometry.seats),
        *(part.data_ptr() for part in parts),
        *[0] * (6 - len(parts)),
    )


def gather(
    geometry: Geometry,
    host: HostRows,
    hot: Tensor,
    state: SeatState,
    plan: StepPlan,
    *,
    layers: range | None = None,
    blocks: int,
    order_from: int = ORDER_FROM_ROWS,
    between: SplitPicks | None = None,
) -> None:
    """As `reference.gather`, on the current stream, by `blocks` blocks; in address order from `order_from` rows on.

    `between`: the kernel in front is `resolve` with these parts, beside which it may start, and attention to them may
    start beside it.
    """
    device = device_of(hot)
    chosen = layers if layers is not None else range(host.layers)
    rows = row_constants(host.row_bytes, len(chosen), host, hot.stride(1))
    own = gather_constants(blocks, order_from, between=between is not None)
    constants = (*geometry_constants(geometry), *rows, *own)
    load_kernel(device, "gather.cu", "gather", constants, threads=gather_threads(blocks), beside=True).launch(
        torch.cuda.current_stream(device),
        blocks,
        host.view[0, 0, chosen.start].data_ptr(),
        hot[chosen.start].data_ptr(),
        plan.misses.data_ptr(),
        plan.counts.data_ptr(),
        state.page_map.data_ptr(),
        i32(plan.batch),
        i32(host.pages),
        ctypes.c_uint32(min((GATHER_BINS << 32) // host.pages, (1 << 32) - 1)),
        i32(hot.shape[1]),
        i64(host.page_pitch),
        i64(host.row_pitch),
        i64(hot.stride(0)),
        0 if between is None else between.copies.data_ptr(),
        early=between is not None,
    )


def append(geometry: Geometry, hot: Tensor, state: SeatState, plan: StepPlan, rows: Tensor) -> None:
    """As `reference.append`, on the current stream."""
    device = device_of(hot)
    constants = geometry_constants(geometry) + row_constants(hot.shape[1], 1, None, hot.stride(0))
    tokens = plan.batch * rows.shape[1]
    load_kernel(device, "backup.cu", "append", constants, threads=_COPY_THREADS, beside=True).launch(
        torch.cuda.current_stream(device),
        -(-tokens // _COPY_WARPS),
        rows.data_ptr(),
        hot.data_ptr(),
        plan.seats.data_ptr(),
        state.lengths.data_ptr(),
        i32(plan.batch),
        i32(rows.shape[1]),
        i32(geometry.seats),
        i64(rows.stride(0)),
        i64(rows.stride(1)),
    )


def backup(
    geometry: Geometry,
    host: HostRows,
    hot: Tensor,
    state: SeatState,
    plan: StepPlan,
    *,
    query_rows: int | None = None,
    blocks: int = _BACKUP_BLOCKS,
) -> None:
    """As `reference.backup`, on the current stream."""
    device = device_of(hot)
    rows = query_rows or geometry.query_rows
    constants = geometry_constants(geometry) + row_constants(host.row_bytes, host.layers, host, hot.stride(1))
    load_kernel(device, "backup.cu", "backup", constants, threads=_COPY_THREADS, beside=True).launch(
        torch.cuda.current_stream(device),
        min(blocks, -(-plan.batch * rows // _COPY_WARPS)),
        host.view.data_ptr(),
        hot.data_ptr(),
        plan.seats.data_ptr(),
        state.lengths.data_ptr(),
        state.page_map.data_ptr(),
        i32(plan.batch),
        i32(rows),
        i32(geometry.seats),
        i32(host.pages),
        i64(host.page_pitch),
        i64(host.row_pitch),
        i64(hot.stride(0)),
    )


def backup_pages(
    geometry: Geometry,
    host: HostRows,
    rows: Tensor,
    pages: Tensor,
    *,
    first_token: int = 0,
    first_layer: int = 0,
    blocks: int = _BACKUP_BLOCKS,
) -> None:
    """As `reference.backup_pages`, on the current stream."""
    device = device_of(rows)
    layers, tokens = rows.shape[0], rows.shape[1]
    constants = geometry_constants(geometry) + row_constants(host.row_bytes, layers, host, rows.stride(1))
    load_kernel(device, "backup.cu", "backup_pages", constants, threads=_COPY_THREADS, beside=True).launch(
        torch.cuda.current_stream(device),
        min(blocks, -(-tokens // _COPY_WARPS)),
        host.view[0, 0, first_layer].data_ptr(),
        rows.data_ptr(),
        pages.data_ptr(),
        i32(tokens),
        i32(first_token),
        i32(host.pages),
        i64(host.page_pitch),
        i64(host.row_pitch),
        i64(rows.stride(0)),
    )
