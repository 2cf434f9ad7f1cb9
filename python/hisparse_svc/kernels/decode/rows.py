"""What a stored MLA row holds, as attention reads it (`hisparse-core::layout` is where the formats are defined).

::

    fp8    656 B   [ 512 × e4m3 │ 4 × fp32 scale │ 64 × bf16 RoPE ]     scale g is for values 128 g … 128 g + 127
    bf16  1152 B   [ 512 × bf16 │ 64 × bf16 RoPE ]
    f32   2304 B   [ 512 × fp32 │ 64 × fp32 RoPE ]                      for tests, where arithmetic shall be exact

A row is key and value at once: the key is all 576 numbers, the value the first 512.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hisparse_svc.kernels.fp8 import SCALE_GROUP, quantise

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "BF16_ROWS",
    "F32_ROWS",
    "FP8_ROWS",
    "KEY_WIDTH",
    "LATENT_WIDTH",
    "ROW_FORMATS",
    "SCALE_GROUP",
    "StoredRow",
    "pack_rows",
    "unpack_rows",
]

LATENT_WIDTH = 512
"""Numbers of a value, and of the part of a key that is one with it."""

ROPE_WIDTH = 64
"""Numbers of a key that carry its position."""

KEY_WIDTH = LATENT_WIDTH + ROPE_WIDTH
"""Numbers of a key, and of a query."""


@dataclass(frozen=True)
class StoredRow:
    """How rows are stored: FP8, BF16 or fp32.

    Attributes:
        name: What tables and messages call it.
        row_bytes: Bytes of one row.
        dtype: How its latent part is stored.
    """

    name: str
    row_bytes: int
    dtype: torch.dtype


FP8_ROWS = StoredRow("fp8", 656, torch.float8_e4m3fn)
BF16_ROWS = StoredRow("bf16", 1152, torch.bfloat16)
F32_ROWS = StoredRow("f32", 2304, torch.float32)

ROW_FORMATS = {row.row_bytes: row for row in (FP8_ROWS, BF16_ROWS, F32_ROWS)}
"""Formats by their bytes: no two are equally long."""


def unpack_rows(rows: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Give the numbers of stored rows.

    Args:
        rows: Bytes, `u8 [..., row_bytes]`.
        dtype: Type to give them in; float64 holds every stored number, scales applied, without rounding.

    Returns:
        Keys, `[..., 576]`.
    """
    stored = ROW_FORMATS[rows.shape[-1]]
    rows = rows.contiguous()
    if stored is not FP8_ROWS:
        return rows.view(stored.dtype).to(dtype)
    groups = LATENT_WIDTH // SCALE_GROUP
    scales_end = LATENT_WIDTH + 4 * groups
    latent = rows[..., :LATENT_WIDTH].contiguous().view(stored.dtype).to(dtype)
    scales = rows[..., LATENT_WIDTH:scales_end].contiguous().view(torch.float32).to(dtype)
    rope = rows[..., scales_end:].contiguous().view(torch.bfloat16).to(dtype)
    return torch.cat([latent * scales.repeat_interleave(SCALE_GROUP, dim=-1), rope], dim=-1)


def pack_rows(keys: Tensor, stored: StoredRow) -> Tensor:
    """Store keys as rows; nothing waits, so it may be captured in a CUDA graph.

    Args:
        keys: Numbers of any float type, `[..., 576]`.
        stored: Format to store them in; FP8 as `quantise` makes it.

    Returns:
        Bytes, `u8 [..., row_bytes]`.
    """
    if stored is not FP8_ROWS:
        return keys.to(stored.dtype).contiguous().view(torch.uint8)
    latent, scales = quantise(keys[..., :LATENT_WIDTH].reshape(*keys.shape[:-1], -1, SCALE_GROUP))
    rope = keys[..., LATENT_WIDTH:].to(torch.bfloat16).contiguous()
    return torch.cat([latent.flatten(-2).view(torch.uint8), scales.view(torch.uint8), rope.view(torch.uint8)], dim=-1)
