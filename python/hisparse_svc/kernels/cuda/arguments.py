"""What the kernels' launchers make of tensors and numbers."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["device_of", "i32", "i64"]


def device_of(tensor: Tensor) -> int:
    """Give the number of the GPU that a tensor is on."""
    index = tensor.device.index
    return torch.cuda.current_device() if index is None else int(index)


def i32(value: int) -> ctypes.c_int32:
    """Give a 32-bit argument; what it holds was checked before."""
    return ctypes.c_int32(value)


def i64(value: int) -> ctypes.c_int64:
    """Give a 64-bit argument."""
    return ctypes.c_int64(value)
