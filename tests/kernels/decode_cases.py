"""Inputs of sparse MLA decode that are hard to get right, and rows made from known numbers."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

SCALE = 192**-0.5
ROW_BYTES = {"fp8": 656, "bf16": 1152, "f32": 2304}
POISON = 0xFF
"""NaN in every format, as value and as scale."""


def store(numbers: Tensor, scales: Tensor | None, kind: str) -> Tensor:
    """Rows of bytes from numbers `[row, 576]`; FP8 takes scales `[row, 4]`."""
    if kind != "fp8":
        dtype = torch.bfloat16 if kind == "bf16" else torch.float32
        return numbers.to(dtype).contiguous().view(torch.uint8)
    assert scales is not None
    latent = (numbers[:, :512].view(-1, 4, 128) / scales.unsqueeze(-1)).clamp(-448, 448)
    stored = latent.to(torch.float8_e4m3fn).view(-1, 512).view(torch.uint8)
    rope = numbers[:, 512:].to(torch.bfloat16).contiguous().view(torch.uint8)
    return torch.cat([stored, scales.contiguous().view(torch.uint8).view(-1, 16), rope], dim=1)


def load(rows: Tensor, kind: str) -> Tensor:
    """Numbers of rows of bytes, in float64; written apart from the product's own."""
    if kind != "fp8":
        return rows.view(torch.bfloat16 if kind == "bf16" else torch.float32).double()
    latent = rows[:, :512].contiguous().view(torch.float8_e4m3fn).double().view(-1, 4, 128)
    scales = rows[:, 512:528].contiguous().view(torch.float32).double()
    rope = rows[:, 528:].contiguous().view(torch.bfloat16).double()
    return torch.cat([(latent * scales.unsqueeze(-1)).view(-1, 512), rope], dim=1)


def _infinite_row(kind: str) -> Tensor:
    """Infinity in every number; e4m3 has none, so FP8 has it as scale."""
    row = store(torch.full((1, 576), torch.inf), torch.ones(1, 4), kind)
    if kind == "fp8":
        row[:, 512:528] = torch.full((1, 4), torch.inf).view(torch.uint8)
    return row


@dataclass(frozen=True)
class Case:
    """One call."""

    kind: str
    q: Tensor
    rows: Tensor
    picks: Tensor
    sink: Tensor | None = None
    counts: Tensor | None = None

    def arguments(self) -> dict[str, Any]:
        return {"q": self.q, "rows": self.rows, "picks": self.picks, "sink": self.sink, "counts": self.counts}

    def to(self, device: str) -> Case:
        moved = {name: None if value is None else value.to(device) for name, value in self.arguments().items()}
        return replace(self, **moved)

    def poisoned(self) -> Case:
        """The same with NaN in every other row that no pick names, and infinity in the rest of them."""
        used = torch.zeros(len(self.rows), dtype=torch.bool)
        used[self.picks[(self.picks >= 0) & (self.picks < len(self.rows))].long()] = True
        rows, unused = self.rows.clone(), (~used).nonzero().flatten()
        rows[unused[::2]] = POISON
        rows[unused[1::2]] = _infinite_row(self.kind)  # a maximum ignores NaN, and infinity not
        return replace(self, rows=rows)

    def oracle(self) -> tuple[Tensor, Tensor]:
        """Output and LSE in float64, pick by pick in the plainest way."""
        batch, query_rows, heads, _ = self.q.shape
        out = torch.zeros(batch, query_rows, heads, 512, dtype=torch.float64)
        lse = torch.full((batch, query_rows, heads), -torch.inf, dtype=torch.float64)
        for i in range(batch):
            for j in range(query_rows):
                top_k = self.picks.shape[2] if self.counts is None else int(self.counts[i, j])
                picked = [p for p in self.picks[i, j, : max(top_k, 0)].tolist() if 0 <= p < len(self.rows)]
                if not picked:
                    continue
                keys = load(self.rows[picked].contiguous(), self.kind)
                logits = SCALE * self.q[i, j].double() @ keys.T
                top = logits.amax(dim=1, keepdim=True)
                weights = torch.exp(logits - top)
                total = weights.sum(dim=1, keepdim=True)
                lse[i, j] = (top + torch.log(total)).squeeze(1)
                share = torch.ones(heads, dtype=torch.float64)
                if self.sink is not None:
                    share = 1 / (1 + torch.exp(self.sink.double() - lse[i, j]))
                out[i, j] = weights @ keys[:, :512] / total * share.unsqueeze(1)
        return out, lse


def make(
    kind: str,
    heads: int,
    *,
    batch: int = 2,
    query_rows: int = 1,
    top_k: int = 192,
    rows: int = 512,
    seed: int = 0,
    query_size: float = 0.5,
    scales: tuple[float, float] = (0.001, 0.021),
) -> Case:
    """Random queries, rows and distinct picks; scales spread evenly in log between the bounds, none a power of two."""
    chance = torch.Generator().manual_seed(seed)
    numbers = torch.randn(rows, 576, generator=chance) * 0.5
    low, high = (torch.tensor(bound).log() for bound in scales)
    spread = torch.exp(low + (high - low) * torch.rand(rows, 4, generator=chance))
    q = (torch.randn(batch, query_rows, heads, 576, generator=chance) * query_size).bfloat16()
    count = batch * query_rows
    picks = torch.stack([torch.randperm(rows, generator=chance)[:top_k] for _ in range(count)])
    return Case(kind, q, store(numbers, spread, kind), picks.int().view(batch, query_rows, top_k))


def _with(case: Case, change: Callable[[Tensor], None]) -> Case:
    picks = case.picks.clone()
    change(picks)
    return replace(case, picks=picks)


def _one_pick(picks: Tensor) -> None:
    kept = picks[..., 37].clone()
    picks[:] = -1
    picks[..., 37] = kept


def _repeat(picks: Tensor) -> None:
    picks[..., 64:] = picks[..., :1]


def _never_written(case: Case, share: int) -> Case:
    """All bytes 0, scales too, in one row of so many: what a gather leaves of a token without a host page."""
    rows = case.rows.clone()
    rows[::share] = 0
    return replace(case, rows=rows)


def _no_rows(picks: Tensor) -> None:
    picks[..., 3], picks[..., 40], picks[..., 90:] = 2**31 - 1, -(2**31), -1


@functools.cache
def edge_cases(kind: str, heads: int, top_k: int = 192) -> dict[str, Case]:
    """Numerical edge cases by name."""
    plain = make(kind, heads, top_k=top_k)
    outlier = make(kind, heads, top_k=top_k, query_size=6.0, seed=5)
    sinks = torch.linspace(-3, 9, heads)
    infinite = torch.where(torch.arange(heads) % 2 == 0, -torch.inf, torch.inf)
    counts = torch.tensor([[77], [0]], dtype=torch.int32)
    short = replace(plain, counts=counts)
    return {
        "plain": plain,
        "no pick at all": _with(plain, lambda picks: picks.fill_(-1)),
        "one request without picks": _with(plain, lambda picks: picks[1].fill_(-1)),
        "one valid pick": _with(plain, _one_pick),
        "no row at every other pick": _with(plain, lambda picks: picks[..., ::2].fill_(-1)),
        "duplicates": _with(plain, _repeat),
        "numbers that are no row": _with(plain, _no_rows),
        "large logits": outlier,
        "scales from tiny to huge": make(kind, heads, top_k=top_k, scales=(1e-6, 3.0), seed=6),
        "some rows never written": _never_written(plain, 3),
        "no row ever written": _never_written(plain, 1),
        "sink": replace(plain, sink=sinks),
        "infinite sink": replace(plain, sink=infinite),
        "sink and no picks": _with(replace(plain, sink=infinite), lambda picks: picks[0].fill_(-1)),
        "counts": short,
        "top-k not a multiple of anything": make(kind, heads, top_k=131, seed=7),
        "one pick of one": make(kind, heads, top_k=1, seed=8),
        "several query rows": make(kind, heads, batch=3, query_rows=4, top_k=96, seed=9),
    }


EDGE_NAMES = tuple(edge_cases("f32", 1))
