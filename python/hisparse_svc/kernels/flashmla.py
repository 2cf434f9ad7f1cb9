"""Sparse MLA decode by the FlashMLA wheel (`flash_mla`): kept to compare with, and where own kernels do not run.

It takes 64 or 128 heads, so queries are padded; -1 alone is no pick to it, so others that are no row become -1; its LSE
of nothing is +inf, and becomes -inf. The sink is applied behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from hisparse_svc.kernels.decode.rows import FP8_ROWS, LATENT_WIDTH

if TYPE_CHECKING:
    from torch import Tensor

    from hisparse_svc.kernels.decode.call import DecodeCall

__all__ = ["PAGE_ROWS", "sparse_mla_decode"]

PAGE_ROWS = 64
"""Rows of one of its pages; there is no page table in sparse mode, so any divisor of the rows would do."""

_HEADS = (64, 128)


def _picks(call: DecodeCall) -> Tensor:
    valid = (call.picks >= 0) & (call.picks < call.rows.shape[0])
    if call.counts is not None:
        valid &= torch.arange(call.top_k, device=call.picks.device) < call.counts.unsqueeze(-1)
    return torch.where(valid, call.picks, -1)


def sparse_mla_decode(call: DecodeCall) -> None:
    """As `reference.sparse_mla_decode`, on the current stream; allocates what the wheel needs."""
    import flash_mla  # type: ignore[import-not-found]  # noqa: PLC0415 - not a dependency

    wheel: Any = flash_mla
    heads = next(heads for heads in _HEADS if heads >= call.heads)
    q = call.q if heads == call.heads else call.q.new_zeros((*call.q.shape[:2], heads, call.q.shape[3]))
    if q is not call.q:
        q[:, :, : call.heads] = call.q
    picks = _picks(call)
    if call.stored is FP8_ROWS:
        pages = call.rows.view(torch.float8_e4m3fn).view(-1, PAGE_ROWS, 1, call.stored.row_bytes)
        schedule = wheel.get_mla_metadata()[0]
        out, lse = wheel.flash_mla_with_kvcache(
            q, pages, None, None, LATENT_WIDTH, schedule, None, call.scale, False, True, picks
        )
        lse = lse.transpose(1, 2)
    else:
        rows = call.rows.view(torch.bfloat16).unsqueeze(1)
        flat = (call.queries, heads)
        out, _, lse = wheel.flash_mla_sparse_fwd(q.view(*flat, -1), rows, picks.view(-1, 1, call.top_k), call.scale)
        out, lse = out.view(*q.shape[:3], LATENT_WIDTH), lse.view(q.shape[:3])
    out, lse = out[:, :, : call.heads], lse[:, :, : call.heads]
    empty = (picks < 0).all(dim=-1, keepdim=True)
    call.lse.copy_(torch.where(empty, -torch.inf, lse))
    kept = 1.0 if call.sink is None else torch.sigmoid(call.lse - call.sink).unsqueeze(-1)
    call.out.copy_(torch.where(empty.unsqueeze(-1), 0, out * kept))
