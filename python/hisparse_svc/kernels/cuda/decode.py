"""Sparse MLA decode on Hopper: CUDA C++ kernels as a function of a checked call."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING

import torch

from hisparse_svc.kernels.cuda.arguments import device_of, i32, i64
from hisparse_svc.kernels.cuda.compile import Kernel, load_kernel
from hisparse_svc.kernels.cuda.decode_shapes import choose
from hisparse_svc.kernels.decode.call import MAX_PARTS
from hisparse_svc.kernels.decode.rows import ROW_FORMATS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from hisparse_svc.kernels.cuda.decode_shapes import BlockShape
    from hisparse_svc.kernels.decode.call import DecodeCall

__all__ = ["SHARED_BYTES", "decode_kernel", "kernel_constants", "merge_lse", "sparse_mla_decode"]

SHARED_BYTES = 232_448
"""Shared memory of a block: all that Hopper gives one. A block has its SM to itself: its registers see to that."""

_MERGE_THREADS = 128
_ROW_BYTES = {row.name: row.row_bytes for row in ROW_FORMATS.values()}


def kernel_constants(shape: BlockShape, splits: int, *, late: bool = False) -> tuple[tuple[str, int], ...]:
    """Give what is defined for a decode kernel; `late`: for picks that come behind the others."""
    own = (("ROW_BYTES", _ROW_BYTES[shape.rows]), ("HEADS", shape.heads), ("SPLITS", splits), ("LATE", int(late)))
    return (*shape.constants, *own)


def decode_kernel(device: int, shape: BlockShape, splits: int, *, late: bool = False) -> Kernel:
    """Give a compiled decode kernel."""
    return load_kernel(
        device,
        shape.source,
        shape.kernel,
        kernel_constants(shape, splits, late=late),
        threads=shape.threads,
        shared_bytes=SHARED_BYTES,
        cluster=splits,
        own_arch=True,
    )


def sparse_mla_decode(call: DecodeCall, *, shape: BlockShape | None = None, splits: int = 0) -> None:
    """As `reference.sparse_mla_decode`, on the current stream; `shape` and `splits` together force a choice.

    Its blocks are set up while the kernel in front ends, and then wait for all that it wrote. With late picks they
    start beside it, which must be the gather of their rows, and wait for it only before those.
    """
    device = device_of(call.q)
    if shape is None or not splits:
        shape, splits = choose(call.stored.name, call.heads, call.queries, _sms(device, call.max_sms))
    late, late_counts = (None, None) if call.late is None else (call.late.rows, call.late.counts)
    decode_kernel(device, shape, splits, late=late is not None).launch(
        torch.cuda.current_stream(device),
        call.queries * shape.blocks(call.heads, splits),
        call.q.data_ptr(),
        call.rows.data_ptr(),
        call.picks.data_ptr(),
        _address(call.counts),
        _address(call.sink),
        call.out.data_ptr(),
        call.lse.data_ptr(),
        i64(call.rows.stride(0)),
        i32(call.heads),
        i32(call.top_k),
        i32(call.rows.shape[0]),
        ctypes.c_float(call.scale * math.log2(math.e)),
        _address(late),
        _address(late_counts),
        early=True,
    )


def merge_lse(parts: Sequence[tuple[Tensor, Tensor]], sink: Tensor | None, out: Tensor, lse: Tensor) -> None:
    """As `reference.merge_lse`, on the current stream, of bfloat16 outputs."""
    device = device_of(out)
    kernel = load_kernel(device, "merge.cu", "merge", (("PARTS", len(parts)),), threads=_MERGE_THREADS)
    unused = [0] * (MAX_PARTS - len(parts))
    kernel.launch(
        torch.cuda.current_stream(device),
        -(-lse.numel() // (_MERGE_THREADS // 32)),
        *(part.data_ptr() for part, _ in parts),
        *unused,
        *(part_lse.data_ptr() for _, part_lse in parts),
        *unused,
        _address(sink),
        out.data_ptr(),
        lse.data_ptr(),
        i32(lse.numel()),
        i32(lse.shape[-1]),
    )


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _sms(device: int, most: int) -> int:
    there = int(torch.cuda.get_device_properties(device).multi_processor_count)
    return min(most, there) if most else there
