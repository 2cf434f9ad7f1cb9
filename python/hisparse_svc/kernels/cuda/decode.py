"""Sparse MLA decode on Hopper: CUDA C++ kernels as a function of a checked call."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING

import torch

from hisparse_svc.kernels.cuda.compile import Kernel, load_kernel
from hisparse_svc.kernels.cuda.decode_shapes import block_shape, splits_for
from hisparse_svc.kernels.decode.rows import ROW_FORMATS

if TYPE_CHECKING:
    from torch import Tensor

    from hisparse_svc.kernels.cuda.decode_shapes import BlockShape
    from hisparse_svc.kernels.decode.call import DecodeCall

__all__ = ["SHARED_BYTES", "decode_kernel", "kernel_constants", "sparse_mla_decode"]

SHARED_BYTES = 232_448
"""Shared memory of a block: all that Hopper gives one. A block has its SM to itself: its registers see to that."""

_ROW_BYTES = {row.name: row.row_bytes for row in ROW_FORMATS.values()}


def kernel_constants(shape: BlockShape, splits: int) -> tuple[tuple[str, int], ...]:
    """Give what is defined for a decode kernel."""
    return (*shape.constants, ("ROW_BYTES", _ROW_BYTES[shape.rows]), ("HEADS", shape.heads), ("SPLITS", splits))


def decode_kernel(device: int, shape: BlockShape, splits: int) -> Kernel:
    """Give a compiled decode kernel."""
    return load_kernel(
        device,
        shape.source,
        shape.kernel,
        kernel_constants(shape, splits),
        threads=shape.threads,
        shared_bytes=SHARED_BYTES,
        cluster=splits,
        own_arch=True,
    )


def sparse_mla_decode(call: DecodeCall, *, shape: BlockShape | None = None, splits: int = 0) -> None:
    """As `reference.sparse_mla_decode`, on the current stream; `shape` and `splits` force a choice."""
    device = call.q.device.index if call.q.device.index is not None else torch.cuda.current_device()
    chosen = shape or block_shape(call.stored.name, call.heads)
    items = call.queries * -(-call.heads // chosen.heads)
    splits = splits or splits_for(chosen, items, _sms(device, call.max_sms))
    decode_kernel(device, chosen, splits).launch(
        torch.cuda.current_stream(device),
        items * splits,
        call.q.data_ptr(),
        call.rows.data_ptr(),
        call.picks.data_ptr(),
        _address(call.counts),
        _address(call.sink),
        call.out.data_ptr(),
        call.lse.data_ptr(),
        ctypes.c_int64(call.rows.stride(0)),
        ctypes.c_int32(call.heads),
        ctypes.c_int32(call.top_k),
        ctypes.c_int32(call.rows.shape[0]),
        ctypes.c_float(call.scale * math.log2(math.e)),
    )


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _sms(device: int, most: int) -> int:
    there = int(torch.cuda.get_device_properties(device).multi_processor_count)
    return min(most, there) if most else there
