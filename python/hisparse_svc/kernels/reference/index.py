"""The indexer, one query row at a time, in float64.

logit_t = scale_t · Σ_h weight_h · max(q_h · key_t, 0)
picks   = the top_k tokens by (logit, then lower token), ascending; -1 behind the last
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hisparse_svc.kernels.fp8 import quantise
from hisparse_svc.kernels.geometry import PAGE_ROWS
from hisparse_svc.kernels.index.keys import INDEX_F32

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from hisparse_svc.kernels.geometry import Geometry
    from hisparse_svc.kernels.index.call import IndexCall
    from hisparse_svc.kernels.index.keys import IndexKeys
    from hisparse_svc.kernels.tensors import SeatState, StepPlan

__all__ = ["append_index_keys", "index_logits", "index_top_k", "write_index_keys"]


def index_logits(call: IndexCall) -> None:
    """Fill `call.logits`, on any device."""
    for request, row, seat, visible in _query_rows(call.geometry, call.state, call.plan):
        pages = call.page_map[seat, : -(-visible // PAGE_ROWS)].long()
        mapped = (pages >= 0) & (pages < call.keys.page_count)
        pages = torch.where(mapped, pages, 0)
        keys = call.keys.values()[pages].double().flatten(0, 1)[:visible]
        products = keys @ call.q[request, row].double().T
        logits = products.clamp_min(0) @ call.weights[request, row].double()
        if call.keys.stored is not INDEX_F32:
            logits *= call.keys.scales()[pages].double().flatten()[:visible]
        known = mapped.repeat_interleave(PAGE_ROWS)[:visible]
        call.logits[request, row, :visible] = logits.masked_fill(~known, -torch.inf).float()


def index_top_k(geometry: Geometry, state: SeatState, plan: StepPlan, logits: Tensor) -> None:
    """Fill `plan.picks`, on any device."""
    plan.picks.fill_(-1)
    for request, row, _, visible in _query_rows(geometry, state, plan):
        scores = logits[request, row, :visible]
        tokens = (scores > -torch.inf).nonzero().flatten()  # not NaN either
        best = scores[tokens].argsort(descending=True, stable=True)[: geometry.top_k]
        plan.picks[request, row, : len(best)] = tokens[best].sort().values.int()


def append_index_keys(
    geometry: Geometry, keys: IndexKeys, state: SeatState, plan: StepPlan, values: Tensor, *, page_map: Tensor
) -> None:
    """Store this step's keys, `[batch, row, 128]`."""
    for request, seat in enumerate(plan.seats.tolist()):
        if 0 <= seat < geometry.seats:
            length = min(int(state.lengths[seat]), geometry.context_tokens)
            new = values[request, max(0, values.shape[1] - length) :]
            write_index_keys(keys, new, page_map[seat], first_token=length - len(new))


def write_index_keys(keys: IndexKeys, values: Tensor, pages: Tensor, *, first_token: int) -> None:
    """Store the keys of consecutive tokens, `[token, 128]`."""
    tokens = torch.arange(first_token, first_token + len(values), device=values.device)
    page = pages[tokens // PAGE_ROWS].long()
    mapped = (page >= 0) & (page < keys.page_count)
    page, slot = page[mapped], tokens[mapped] % PAGE_ROWS
    if keys.stored is INDEX_F32:
        keys.values()[page, slot] = values[mapped].float()
        return
    stored, scales = quantise(values[mapped])
    keys.values().view(torch.uint8)[page, slot] = stored.view(torch.uint8)
    keys.scales()[page, slot] = scales


def _query_rows(geometry: Geometry, state: SeatState, plan: StepPlan) -> Iterator[tuple[int, int, int, int]]:
    """Give request, query row, seat and how many tokens it sees, where it sees any."""
    for request, seat in enumerate(plan.seats.tolist()):
        if not 0 <= seat < geometry.seats:
            continue
        length = min(int(state.lengths[seat]), geometry.context_tokens)
        for row in range(geometry.query_rows):
            visible = length - (geometry.query_rows - 1 - row)
            if visible > 0:
                yield request, row, seat, visible
