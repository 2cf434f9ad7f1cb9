"""Logits by the DeepGEMM wheel, whose page is the one we keep.

It takes a table of pages per request and lengths per query row, and allocates its output: so this backend allocates,
and copies what it is given. It compiles its kernel with the CUDA toolkit's `nvcc` when it first runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from hisparse_svc.kernels.geometry import PAGE_ROWS

if TYPE_CHECKING:
    from hisparse_svc.kernels.index.call import IndexCall

__all__ = ["arguments", "logits"]


def arguments(call: IndexCall) -> dict[str, Any]:
    """Give the wheel's arguments for a call; padded requests and rows that see nothing get one token."""
    wheel = import_module("deep_gemm")
    geometry, state, seats = call.geometry, call.state, call.plan.seats.clamp_min(0).long()
    behind = torch.arange(geometry.query_rows - 1, -1, -1, device=seats.device)
    lengths = (state.lengths[seats, None].clamp_max(geometry.context_tokens) - behind).clamp_min(1).int()
    table = call.page_map[seats]
    return {
        "q": call.q,
        "kv_cache": call.keys.pages.view(call.keys.page_count, PAGE_ROWS, 1, -1),
        "weights": call.weights.flatten(0, 1),
        "context_lens": lengths,
        "block_table": torch.where(_mapped(call, table), table, 0),
        "schedule_meta": wheel.get_paged_mqa_logits_metadata(lengths, PAGE_ROWS, wheel.get_num_sms()),
        "max_context_len": geometry.map_pages * PAGE_ROWS,
    }


def logits(call: IndexCall) -> None:
    """Fill `call.logits`."""
    found = import_module("deep_gemm").fp8_paged_mqa_logits(**arguments(call))
    found = found.view(call.plan.batch, call.query_rows, -1)
    known = _mapped(call, call.page_map[call.plan.seats.clamp_min(0).long()])
    known = known.repeat_interleave(PAGE_ROWS, 1).unsqueeze(1)
    call.logits[..., : found.shape[-1]] = torch.where(known[..., : found.shape[-1]], found, -torch.inf)


def _mapped(call: IndexCall, table: torch.Tensor) -> torch.Tensor:
    return (table >= 0) & (table < call.keys.page_count)
