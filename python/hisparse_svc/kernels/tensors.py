"""The tensors that kernels share: state of the seats, and the plan of one step.

::

    SeatState   lengths      i64 [seats]           tokens of the request, this step's rows included
                mapped_pages i32 [seats]           how many entries of its page map are in use
                newest_from  i32 [seats]           first token that was written to the newest page
                page_map     i32 [seats, pages]    token // 64 → host page, -1 beyond the mapped ones
    StepPlan    seats        i32 [batch]           which seat each request of the batch has; -1: padded, inert
                picks        i32 [batch, query row, top_k]     tokens; -1: none
                rows         i32 [batch, query row, top_k]     ── resolve ──► hot rows; -1 where there was no pick
                misses       i32 [batch, picks, 2]             (token, hot row) pairs, the first `counts` of them
                counts       i32 [batch]

All stay at fixed addresses, so a captured graph can be replayed after their contents change.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import torch

from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kernels.devices import usable_device
from hisparse_svc.kernels.geometry import EMPTY_PAGE, MAX_BATCH, Geometry
from hisparse_svc.kernels.kinds import demand_kinds, each

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["PAIR_BYTES", "SeatState", "StepPlan", "check_batch", "lasting", "nbytes"]

PAIR_BYTES = 8
"""Pairs of 32-bit numbers are read at once: lists of them start at a multiple of this."""

Makes = ParamSpec("Makes")
Made = TypeVar("Made")


def lasting(make: Callable[Makes, Made]) -> Callable[Makes, Made]:
    """Decorate what allocates memory to be written under any mode: inference tensors take no write outside theirs."""
    wrapped: Callable[Makes, Made] = torch.inference_mode(mode=False)(make)  # untyped where torch is not installed
    return wrapped


def check_batch(batch: int, least: int, most: int, remedy: str) -> None:
    """Check a number of requests.

    Raises:
        InvalidInput: It is not from `least` to `most`.
    """
    demand_kinds(each(int, batch=batch))
    if not least <= batch <= most:
        raise InvalidInput([Problem("batch", str(batch), f"must be {least} to {most}", remedy)])


def nbytes(*tensors: Tensor) -> int:
    """Bytes that these tensors hold."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@dataclass(frozen=True)
class SeatState:
    """Where each seat's request stands.

    Attributes:
        lengths: Tokens of the request, this step's rows included, `i64 [seat]`.
        mapped_pages: How many entries of its page map are in use, `i32 [seat]`.
        newest_from: First token that was written to the newest page, `i32 [seat]`.
        page_map: Host page of each 64 tokens, -1 beyond the mapped ones, `i32 [seat, page]`.
    """

    lengths: Tensor
    mapped_pages: Tensor
    newest_from: Tensor
    page_map: Tensor

    @staticmethod
    @lasting
    def allocate(geometry: Geometry, device: torch.device | str) -> SeatState:
        """Make the state of empty seats.

        Raises:
            InvalidInput: A device that is none.
            DeviceUnavailable: A GPU that is not here.
        """
        demand_kinds(each(Geometry, geometry=geometry))
        seats, device = geometry.seats, usable_device(device)
        return SeatState(
            lengths=torch.zeros(seats, dtype=torch.int64, device=device),
            mapped_pages=torch.zeros(seats, dtype=torch.int32, device=device),
            newest_from=torch.zeros(seats, dtype=torch.int32, device=device),
            page_map=torch.full((seats, geometry.map_pages), EMPTY_PAGE, dtype=torch.int32, device=device),
        )


@dataclass(frozen=True)
class StepPlan:
    """Picks of one step and what `resolve` made of them.

    Attributes:
        seats: Which seat each request of the batch has, `i32 [batch]`; -1: padded, inert.
        picks: Tokens to attend to, `i32 [batch, query row, top_k]`; -1: none.
        rows: Their hot rows, `i32 [batch, query row, top_k]`; -1 where there was no pick. `resolve` fills it and what
            follows.
        misses: Missing tokens and the hot rows they go to, `i32 [batch, picks, 2]`, the first `counts` of them.
        counts: How many misses each request has, `i32 [batch]`.
    """

    seats: Tensor
    picks: Tensor
    rows: Tensor
    misses: Tensor
    counts: Tensor

    @staticmethod
    @lasting
    def allocate(geometry: Geometry, device: torch.device | str, batch: int = 0) -> StepPlan:
        """Make the plan of `batch` requests (0: one per seat), all padded.

        Raises:
            InvalidInput: More requests than one call takes, or a device that is none.
            DeviceUnavailable: A GPU that is not here.
        """
        demand_kinds(each(Geometry, geometry=geometry))
        check_batch(batch, 0, max(MAX_BATCH, geometry.seats), "split the batch")
        batch, device = batch or geometry.seats, usable_device(device)
        picks = (batch, geometry.query_rows, geometry.top_k)

        def none(*shape: int) -> Tensor:
            return torch.full(shape, -1, dtype=torch.int32, device=device)

        return StepPlan(
            seats=none(batch),
            picks=none(*picks),
            rows=none(*picks),
            misses=none(batch, geometry.picks, 2),
            counts=torch.zeros(batch, dtype=torch.int32, device=device),
        )

    @property
    def batch(self) -> int:
        """Requests of the batch, padded ones included."""
        return int(self.seats.shape[0])

    def first(self, batch: int) -> StepPlan:
        """Give the part for the first `batch` requests; it shares memory with this one.

        Raises:
            InvalidInput: It is of fewer.
        """
        check_batch(batch, 0, self.batch, "allocate the plan of a larger batch")
        return StepPlan(**{field.name: getattr(self, field.name)[:batch] for field in fields(self)})

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return nbytes(self.seats, self.picks, self.rows, self.misses, self.counts)
