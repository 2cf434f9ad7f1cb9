"""The attention that a hooked model calls: absorbed MLA over hot rows in decode, transformers' own in prefill.

::

    decode    q ── W_uk ──► latent q ── LayerStep.attend ──► latent out ── W_uv ──► out     (K and V are never expanded)
    prefill   q, K, V, mask of the picks ── sdpa ──► out                                   (bit by bit what plain does)

Registered under `hisparse` in transformers' interfaces of attention and of masks; the cache comes among the keyword
arguments, where a hook of the layer puts it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CACHE_KEYWORD", "NAME", "absorb_query", "expand_output", "register"]

NAME = "hisparse"
"""What `set_attn_implementation` calls it."""

CACHE_KEYWORD = "hisparse_cache"
"""Keyword argument by which a cache reaches the attention function."""


def register() -> None:
    """Make the name known to transformers; twice is no error."""
    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def absorb_query(module: Any, query: Tensor) -> Tensor:
    """Bring queries to the latent space: `[batch, head, query row, nope + rope]` to `[batch, query row, head, 576]`."""
    nope = module.qk_nope_head_dim
    latent = torch.einsum("bhsn,hnl->bshl", query[..., :nope], _expansion(module)[:, :nope])
    return torch.cat([latent, query[..., nope:].transpose(1, 2)], dim=-1).contiguous()


def expand_output(module: Any, latent: Tensor) -> Tensor:
    """Bring attention's output back: `[batch, query row, head, 512]` to `[batch, query row, head, value]`."""
    return torch.einsum("bshl,hvl->bshv", latent, _expansion(module)[:, module.qk_nope_head_dim :])


def _expansion(module: Any) -> Tensor:
    """What expands a latent to K and V, `[head, nope + value, 512]`."""
    weight: Tensor = module.kv_b_proj.weight
    return weight.view(-1, module.qk_nope_head_dim + module.v_head_dim, module.kv_lora_rank)


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    *,
    indices: Tensor,
    scaling: float,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    cache = kwargs.pop(CACHE_KEYWORD, None)
    if cache is not None and cache.decoding:
        q = absorb_query(module, query)
        return expand_output(module, cache.attend(module.layer_idx, q, indices, scale=scaling)), None
    picked = indices.new_zeros((*indices.shape[:2], key.shape[2]), dtype=torch.bool)
    mask = attention_mask & picked.scatter_(-1, indices.long(), True).unsqueeze(1)
    out: Tensor = sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **kwargs)[0]
    if cache is not None:
        cache.attended(module.layer_idx)
    return out, None
