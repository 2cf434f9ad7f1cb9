"""Sparse MLA decode, one query at a time, in float64.

logit_j = scale · q · k_j          over the picks j that are rows
lse     = log Σ_j exp(logit_j)
out     = Σ_j exp(logit_j − lse) v_j  ·  1 / (1 + exp(sink − lse))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hisparse_svc.kernels.decode.rows import LATENT_WIDTH, unpack_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from hisparse_svc.kernels.decode.call import DecodeCall

__all__ = ["merge_lse", "sparse_mla_decode"]


def sparse_mla_decode(call: DecodeCall) -> None:
    """Fill `call.out` and `call.lse`; on any device, without waiting for it."""
    last = call.rows.shape[0] - 1
    for request in range(call.q.shape[0]):
        for query in range(call.q.shape[1]):
            picks = call.picks[request, query].long()
            valid = (picks >= 0) & (picks <= last)
            if call.counts is not None:
                valid &= torch.arange(call.top_k, device=picks.device) < call.counts[request, query]
            keys = unpack_rows(call.rows[picks.clamp(0, last)])
            keys = torch.where(valid.unsqueeze(-1), keys, 0)  # what lies in other rows may be anything, NaN too
            logits = call.q[request, query].double() @ keys.T * call.scale
            logits = logits.masked_fill(~valid, -torch.inf)
            lse = torch.logsumexp(logits, dim=-1)
            weights = torch.exp(logits - _finite(lse).unsqueeze(-1))
            out = weights @ keys[:, :LATENT_WIDTH]
            call.out[request, query] = (out * _kept(lse, call.sink).unsqueeze(-1)).to(call.out.dtype)
            call.lse[request, query] = lse.to(call.lse.dtype)


def merge_lse(parts: Sequence[tuple[Tensor, Tensor]], sink: Tensor | None) -> tuple[Tensor, Tensor]:
    """As `kernels.merge_lse`, in float64 and in the order of the parts."""
    lses = torch.stack([lse.double() for _, lse in parts])
    lse = torch.logsumexp(lses, dim=0)
    weights = torch.exp(lses - _finite(lse)) * _kept(lse, sink)
    out = torch.zeros_like(parts[0][0], dtype=torch.float64)
    for weight, (part, _) in zip(weights, parts, strict=True):
        out += torch.where(weight.unsqueeze(-1) != 0, weight.unsqueeze(-1) * part.double(), 0)
    return out.to(parts[0][0].dtype), lse.to(parts[0][1].dtype)


def _finite(lse: Tensor) -> Tensor:
    """Nothing selected: any finite number will do, as every weight is 0."""
    return torch.where(lse == -torch.inf, 0, lse)


def _kept(lse: Tensor, sink: Tensor | None) -> Tensor:
    """Share of the attention that the sink leaves: exp(lse) / (exp(lse) + exp(sink))."""
    if sink is None:
        return torch.ones_like(lse)
    return torch.where(lse == -torch.inf, 0, torch.sigmoid(lse - sink.double()))
