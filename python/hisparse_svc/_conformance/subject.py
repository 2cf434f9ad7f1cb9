"""What the suite drives, and our own hot cache as such a thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from hisparse_svc.engine import HotCache, RowFormat, back_up, swap_in
from hisparse_svc.kernels import NEWEST_TOKENS, Geometry, HostRows, append

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["HotCacheSubject", "Shape", "Step", "Subject"]

POISON = -7_777_777
"""What outputs hold before a step: no row has this number."""


@dataclass(frozen=True)
class Shape:
    """What a check asks for.

    Attributes:
        seats: Requests at once.
        hot_rows: Rows of a seat for any token.
        top_k: Picks of one query row.
        query_rows: Query rows of one request.
        context_tokens: Longest request.
        layers: Layers that share the index.
        row_bytes: Bytes of a row.
        align_bytes: What host and hot rows are aligned to: 16, 64 or 128.
        host_pages: Pages of the host pool.
    """

    seats: int = 3
    hot_rows: int = 128
    top_k: int = 48
    query_rows: int = 1
    context_tokens: int = 2048
    layers: int = 1
    row_bytes: int = 656
    align_bytes: int = 16
    host_pages: int = 128


@dataclass(frozen=True)
class Step:
    """What a step gave, on the CPU.

    Attributes:
        rows: Row of every pick, `[request, query row, pick]`; -1: none.
        misses: Of each request, the (token, row) pairs that were fetched.
    """

    rows: Tensor
    misses: list[list[tuple[int, int]]]


class Subject(Protocol):
    """A resolver with all that it needs to run: hot rows, host rows, and the copies between them."""

    @property
    def newest_tokens(self) -> int:
        """How many tokens behind a request's end are kept outside the recency order once appended; at least 1."""

    @property
    def host(self) -> Tensor:
        """Host rows as bytes, `[page, row, layer, byte]`."""

    def take_seat(self, seat: int, pages: Sequence[int], length: int) -> None:
        """Seat a request whose tokens are in these host pages."""

    def release_seat(self, seat: int) -> None:
        """Free a seat."""

    def append(self, seats: Sequence[int], rows: Tensor) -> None:
        """Lengthen each request by the rows `[request, query row, layer, byte]`, make them hot and back them up."""

    def refuse(self, seats: Sequence[int], tokens: int) -> None:
        """Take back the last tokens of each request."""

    def step(self, seats: Sequence[int], picks: Tensor, poison: int) -> Step:
        """Resolve picks `[request, query row, pick]` and fetch what is missing; outputs hold `poison` before."""

    def hot_rows(self, rows: Tensor) -> Tensor:
        """Give the bytes of these hot rows, `[row, layer, byte]`, on the CPU."""


class HotCacheSubject:
    """Our hot cache under test, on the CPU or a GPU."""

    newest_tokens = NEWEST_TOKENS

    def __init__(self, shape: Shape, device: str = "cpu") -> None:
        self.geometry = Geometry(
            seats=shape.seats,
            hot_rows=shape.hot_rows,
            top_k=shape.top_k,
            query_rows=shape.query_rows,
            context_tokens=shape.context_tokens,
        )
        row = RowFormat("rows", shape.row_bytes, shape.align_bytes)
        self.cache = HotCache(self.geometry, [shape.layers], row, device)
        self.host_rows = HostRows.allocate(
            shape.host_pages, shape.layers, shape.row_bytes, stride_bytes=row.stride_bytes, pinned=device != "cpu"
        )

        stream: Any = torch.cuda.Stream  # untyped in torch
        self._side = stream() if device != "cpu" else None

    @property
    def host(self) -> Tensor:
        """Host rows, once the device is done with them."""
        if self.cache.device.type == "cuda":
            torch.cuda.synchronize(self.cache.device)
        return self.host_rows.view

    def take_seat(self, seat: int, pages: Sequence[int], length: int) -> None:
        """Seat a request."""
        self.cache.take_seat(seat, pages, length)

    def release_seat(self, seat: int) -> None:
        """Free a seat."""
        self.cache.release_seat(seat)

    def append(self, seats: Sequence[int], rows: Tensor) -> None:
        """Append and back up."""
        cache, plan = self.cache, self.cache.plan.first(len(seats))
        plan.seats[:] = torch.tensor(seats, dtype=torch.int32)
        cache.advance(plan.seats, rows.shape[1])
        for layer in range(rows.shape[2]):
            new = rows[:, :, layer].contiguous().to(cache.device)
            append(cache.geometry, cache.rows[0][layer], cache.state, plan, new)
        back_up(cache, 0, self.host_rows, len(seats), query_rows=rows.shape[1], side_stream=self._side).wait()

    def refuse(self, seats: Sequence[int], tokens: int) -> None:
        """Take tokens back."""
        self.cache.advance(torch.tensor(seats, dtype=torch.int32, device=self.cache.device), -tokens)

    def step(self, seats: Sequence[int], picks: Tensor, poison: int) -> Step:
        """Swap in."""
        plan = self.cache.plan.first(len(seats))
        plan.seats[:] = torch.tensor(seats, dtype=torch.int32)
        plan.picks[:] = picks.int()
        for output in (plan.rows, plan.misses, plan.counts):
            output.fill_(poison)
        done = swap_in(self.cache, 0, self.host_rows, len(seats), side_stream=self._side)
        done.wait()
        counts, misses = done.counts.cpu().tolist(), plan.misses.cpu().tolist()
        listed = [
            [(token, row) for token, row in pairs[: max(count, 0)]] for pairs, count in zip(misses, counts, strict=True)
        ]
        return Step(done.rows.cpu().long(), listed)

    def hot_rows(self, rows: Tensor) -> Tensor:
        """Read hot rows."""
        return self.cache.rows[0][:, rows.to(self.cache.device)].transpose(0, 1).cpu()
