"""Words of slot and token, packed and unpacked. 32-bit words use the sign bit, so arithmetic is done in 64 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from hisparse_svc.kernels.geometry import Geometry

__all__ = ["empty_words", "pack", "slots_of", "tokens_of", "word_dtype"]

_U32 = 0xFFFF_FFFF


def word_dtype(geometry: Geometry) -> torch.dtype:
    """Give the dtype that holds one word."""
    return torch.int32 if geometry.word_bits == 32 else torch.int64


def pack(geometry: Geometry, slots: Tensor, tokens: Tensor) -> Tensor:
    """Make words of slots and tokens."""
    words = slots.long() << geometry.token_bits | tokens.long()
    if geometry.word_bits == 32:
        return torch.where(words > _U32 >> 1, words - (_U32 + 1), words).int()
    return words


def tokens_of(geometry: Geometry, words: Tensor) -> Tensor:
    """Give the tokens of words, 64-bit."""
    return words.long() & geometry.empty_token


def slots_of(geometry: Geometry, words: Tensor) -> Tensor:
    """Give the slots of words, 64-bit."""
    unsigned = words.long() & _U32 if geometry.word_bits == 32 else words
    return unsigned >> geometry.token_bits


def empty_words(geometry: Geometry, device: torch.device | str) -> Tensor:
    """Give the words of a seat that holds nothing: slot 0 is taken first."""
    slots = torch.arange(geometry.hot_rows, device=device)
    return pack(geometry, slots, torch.full_like(slots, geometry.empty_token))
