"""Requests with index keys, for tests of the indexer on any device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from hisparse_svc.kernels import (
    INDEX_FP8,
    PAGE_ROWS,
    Geometry,
    IndexKeys,
    SeatState,
    StepPlan,
    index_logits,
    index_logits_shape,
    indexer,
    quantise,
    write_index_keys,
)
from hisparse_svc.kernels.index.call import IndexCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hisparse_svc.kernels.index.keys import IndexFormat
    from torch import Tensor

NAN_BYTE = 0x7F


@dataclass
class IndexCase:
    """Requests of one step, their keys, and what `index_logits` takes. `numbers` are the keys before quantising."""

    geometry: Geometry
    keys: IndexKeys
    state: SeatState
    plan: StepPlan
    q: Tensor
    weights: Tensor
    logits: Tensor
    numbers: list[Tensor]

    def logits_by(self, backend: str = "auto") -> None:
        """Call `index_logits`."""
        index_logits(*self.arguments, weights=self.weights, logits=self.logits, backend=backend)

    def picks_by(self, backend: str = "auto") -> None:
        """Call `indexer`."""
        indexer(*self.arguments, weights=self.weights, logits=self.logits, backend=backend)

    @property
    def call(self) -> IndexCall:
        """The call of `index_logits`, as backends get it."""
        return IndexCall(*self.arguments[:4], self.state.page_map, self.q, self.weights, self.logits)

    @property
    def arguments(self) -> tuple[Geometry, IndexKeys, SeatState, StepPlan, Tensor]:
        return (self.geometry, self.keys, self.state, self.plan, self.q)

    def visible(self, request: int, row: int) -> int:
        """Tokens that a query row sees."""
        seat = int(self.plan.seats[request])
        if seat < 0:
            return 0
        return max(0, int(self.state.lengths[seat]) - (self.geometry.query_rows - 1 - row))


def index_case(
    lengths: Sequence[int],
    *,
    heads: int = 64,
    query_rows: int = 1,
    top_k: int = 64,
    context_tokens: int = 0,
    stored: IndexFormat = INDEX_FP8,
    device: str = "cpu",
    seed: int = 0,
    padded: Sequence[int] = (),
    pitch: int = 0,
) -> IndexCase:
    """Make one: pages shuffled, seats in another order than requests, whatever is unused poisoned with NaN."""
    chance = torch.Generator().manual_seed(seed)
    context = context_tokens or max(*lengths, 1)
    geometry = Geometry(
        seats=len(lengths),
        hot_rows=-(-top_k * query_rows // PAGE_ROWS) * PAGE_ROWS,
        top_k=top_k,
        query_rows=query_rows,
        context_tokens=context,
    )
    pages = [-(-length // PAGE_ROWS) for length in lengths]
    order = torch.randperm(sum(pages) + 3, generator=chance).int()
    memory = torch.full((len(order), pitch or stored.page_bytes), NAN_BYTE, dtype=torch.uint8)
    keys = IndexKeys(memory[:, : stored.page_bytes])
    state, plan = SeatState.allocate(geometry, "cpu"), StepPlan.allocate(geometry, "cpu")
    plan.seats[:] = torch.randperm(len(lengths), generator=chance).int()
    numbers, start = [], 0
    for seat, length in enumerate(lengths):
        mine = order[start : start + pages[seat]]
        start += pages[seat]
        state.page_map[seat, : len(mine)] = mine
        state.lengths[seat] = length
        numbers.append(torch.randn((length, 128), generator=chance) * torch.rand((length, 1), generator=chance))
        if length:
            write_index_keys(keys, numbers[-1], mine)
    for request in padded:
        plan.seats[request] = -1
    shape = (len(lengths), query_rows, heads)
    exact = torch.randn((*shape, 128), generator=chance)
    weights = torch.randn(shape, generator=chance)
    q, scales = quantise(exact) if stored is INDEX_FP8 else (exact, torch.ones(shape))
    logits = torch.full(index_logits_shape(geometry, len(lengths)), torch.nan)

    def there(tensor: Tensor) -> Tensor:
        return tensor.to(device)

    if device != "cpu":
        memory = there(memory)
        keys = IndexKeys(memory[:, : stored.page_bytes])
    return IndexCase(
        geometry,
        keys,
        SeatState(*(there(getattr(state, name)) for name in ("lengths", "mapped_pages", "newest_from", "page_map"))),
        StepPlan(*(there(getattr(plan, name)) for name in ("seats", "picks", "rows", "misses", "counts"))),
        there(q),
        there(weights * scales),
        there(logits),
        numbers,
    )
