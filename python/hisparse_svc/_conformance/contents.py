"""What a row holds: bytes that depend on request, token, version, layer and place, so that any mix-up shows."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["row_contents"]

_MASK = 0xFFFF_FFFF


def row_contents(request: int, tokens: Tensor, versions: Tensor, layers: int, row_bytes: int) -> Tensor:
    """Give the bytes of these tokens, `[token, layer, byte]`.

    Args:
        request: Number of the request; every admission has its own.
        tokens: Tokens.
        versions: How often each was written before: a refused draft is written again.
        layers: Layers of the group.
        row_bytes: Bytes of a row.
    """
    mixed = tokens.long() * 0x9E37_79B1 + versions.long() * 0x2545_F491 + request * 0x85EB_CA77
    mixed = _stir(mixed[:, None] + torch.arange(1, layers + 1) * 0xC2B2_AE3D)
    return _stir(mixed[..., None] + torch.arange(row_bytes) * 0x27D4_EB2F).to(torch.uint8)


def _stir(value: Tensor) -> Tensor:
    value = value & _MASK
    value = ((value ^ value >> 15) * 0x2C1B_3C6D) & _MASK
    return ((value ^ value >> 12) & _MASK) % 251
