"""Hot rows of the running requests, with everything that says which token is where.

::

    group 0   rows  [layer][seat, hot row or newest row][row bytes]        words [seat][hot rows]
    group 1   rows  …                                                        words …
    shared    page map, lengths (SeatState)       picks, slots and misses of one step (StepPlan)

A group is the layers that share one index: they miss the same tokens, so they have one set of words and one plan. The
plan's buffers serve the groups in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from hisparse_svc.engine.rows import RowFormat
from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kernels import EMPTY_PAGE, PAGE_ROWS, Geometry, SeatState, StepPlan, usable_device
from hisparse_svc.kernels.checks import Checks
from hisparse_svc.kernels.kinds import demand_kinds, each
from hisparse_svc.kernels.tensors import lasting, nbytes
from hisparse_svc.kernels.words import empty_words, word_dtype

if TYPE_CHECKING:
    from torch import Tensor

    from hisparse_svc.kernels import HostRows

__all__ = ["HotCache", "layer_group_problems", "pool_row_problems"]

_MAX_PAGE = 2**31 - 1


def layer_group_problems(layer_groups: Sequence[int]) -> list[Problem]:
    """Say what is wrong with the layers of a model's groups."""
    demand_kinds(each(Sequence, layer_groups=layer_groups))
    if layer_groups and all(type(layers) is int and layers >= 1 for layers in layer_groups):
        return []
    rule = "must name at least one group, each of at least one layer"
    return [Problem("layer_groups", str(list(layer_groups)), rule, "give the model's groups")]


def pool_row_problems(geometry: Geometry, pool_rows: int) -> list[Problem]:
    """Say what is wrong with the rows of each layer to allocate; 0 stands for what the seats take."""
    seat_rows = geometry.seats * geometry.padded_rows
    if pool_rows == 0 or pool_rows >= seat_rows:
        return []
    rule = f"must be at least {seat_rows}, what {geometry.seats} seats take"
    return [Problem("pool_rows", str(pool_rows), rule, "use fewer seats, or a plan's own")]


class HotCache:
    """Hot rows of `geometry.seats` requests.

    Attributes:
        geometry: Shape of it.
        layer_groups: Layers of each group.
        row_format: How rows are stored.
        rows: Hot rows of each group, `[layer, row, byte]`.
        spare_rows: Rows of each group that no seat takes.
        words: Words of each group, `[group, seat, hot row]`.
        state: Where the seats' requests stand.
        plan: Buffers of one step, at fixed addresses.

    Example:
        >>> from hisparse_svc.engine import MLA_FP8, Geometry, HotCache
        >>> cache = HotCache(Geometry(seats=2, hot_rows=128, top_k=64), [4, 3], MLA_FP8, "cpu")
        >>> cache.device_bytes["hot"] == 7 * 2 * (128 + 64) * 656
        True
    """

    @lasting
    def __init__(
        self,
        geometry: Geometry,
        layer_groups: Sequence[int],
        row_format: RowFormat,
        device: torch.device | str,
        *,
        pool_rows: int = 0,
    ) -> None:
        """Allocate everything, empty.

        Args:
            geometry: Shape of the cache.
            layer_groups: Layers of each group, in the order of the model.
            row_format: How rows are stored.
            device: Where; `"cpu"` runs the reference kernels.
            pool_rows: Rows of each layer to allocate, a plan's `device_tokens`: seats take whole hot buffers of them,
                the rest (`spare_rows`) is the engine's. 0: what the seats take.

        Raises:
            InvalidInput: No group, a group without layers, fewer rows than the seats take, or a device that is none.
            DeviceUnavailable: A GPU that is not here.
        """
        demand_kinds(
            each(Geometry, geometry=geometry), each(RowFormat, row_format=row_format), each(int, pool_rows=pool_rows)
        )
        device = usable_device(device)
        seat_rows = geometry.seats * geometry.padded_rows
        if problems := pool_row_problems(geometry, pool_rows) + layer_group_problems(layer_groups):
            raise InvalidInput(problems)
        self.geometry = geometry
        self.layer_groups = tuple(layer_groups)
        self.row_format = row_format
        shape = (pool_rows or seat_rows, row_format.stride_bytes)
        self._stored = [torch.empty((layers, *shape), dtype=torch.uint8, device=device) for layers in self.layer_groups]
        self.rows = [rows[:, :seat_rows, : row_format.row_bytes] for rows in self._stored]
        self.spare_rows = [rows[:, seat_rows:, : row_format.row_bytes] for rows in self._stored]
        words = (len(self.layer_groups), geometry.seats, geometry.hot_rows)
        self.words = torch.empty(words, dtype=word_dtype(geometry), device=device)
        self.words[:] = empty_words(geometry, device)
        self.state = SeatState.allocate(geometry, device)
        self.plan = StepPlan.allocate(geometry, device)

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self.words.device

    @property
    def device_bytes(self) -> dict[str, int]:
        """Bytes allocated, under the names of the planner's `device_bytes`."""
        state = self.state
        return {
            "hot": nbytes(*self._stored),
            "tables": nbytes(self.words, state.lengths, state.mapped_pages, state.newest_from),
            "maps": nbytes(state.page_map),
            "side": self.plan.nbytes,
        }

    def take_seat(self, seat: int, pages: Sequence[int], length: int) -> None:
        """Give a seat to a request whose `length` tokens are in host memory. Nothing of it is hot yet.

        Args:
            seat: The seat; whatever it held is forgotten.
            pages: Host pages of the request, in order; room for its output included.
            length: Tokens it has so far.

        Raises:
            InvalidInput: A seat, length or number of pages out of range.
        """
        demand_kinds(each(int, length=length))
        problems = self._seat_problems(seat, pages)
        longest = self.geometry.longest_at_hand
        if not 0 <= length <= longest:
            rule = f"must be 0 to {longest}"
            problems.append(Problem("length", str(length), rule, "make the cache for longer requests"))
        if length > len(pages) * PAGE_ROWS:
            rule = f"must hold {length} tokens, at {PAGE_ROWS} a page"
            problems.append(Problem("pages", f"{len(pages)} pages", rule, "give the pages of all of them"))
        if problems:
            raise InvalidInput(problems)
        self.words[:, seat] = empty_words(self.geometry, self.device)
        self._map(seat, pages)
        self.state.lengths[seat] = length
        self.state.newest_from[seat] = length

    def extend_seat(self, seat: int, pages: Sequence[int]) -> None:
        """Give the request on a seat more host pages, behind those it has; what is hot stays hot.

        Args:
            seat: Its seat.
            pages: All of its pages, the new ones included; which it had is not looked at, as that would wait.

        Raises:
            InvalidInput: A seat, a page or their number out of range.
        """
        if problems := self._seat_problems(seat, pages):
            raise InvalidInput(problems)
        self._map(seat, pages)

    def release_seat(self, seat: int) -> None:
        """Forget what a seat holds."""
        self.take_seat(seat, (), 0)

    def advance(self, seats: Tensor, tokens: int | Tensor) -> None:
        """Add tokens to the requests of a step, before their rows are appended; negative takes refused drafts back.

        Args:
            seats: Seats, `i32 [batch]`; -1, and what is no seat, is skipped.
            tokens: How many, for all or for each, `i64 [batch]`.

        Raises:
            InvalidInput: Seats, or tokens, of another type, or not of one batch.
        """
        each_has = isinstance(tokens, torch.Tensor)
        demand_kinds(each(torch.Tensor, seats=seats), {} if each_has else each(int, tokens=tokens))
        with Checks(self.device) as check:
            if check.dims("seats", seats, "batch", "pass the seats of a step: plan.seats"):
                check.tensor("seats", seats, tuple(seats.shape), torch.int32, "pass the seats of a step: plan.seats")
            if isinstance(tokens, torch.Tensor):
                check.tensor("tokens", tokens, tuple(seats.shape), torch.int64, "pass one number for each seat")
        last = self.geometry.seats - 1
        added = torch.where((seats >= 0) & (seats <= last), tokens, 0).to(torch.int64)
        self.state.lengths.index_add_(0, seats.clamp(0, last).long(), added)

    def host_problems(self, group: int, host: HostRows) -> list[Problem]:
        """Say why host rows are not those of a group."""
        if not 0 <= group < len(self.layer_groups):
            rule = f"must be 0 to {len(self.layer_groups) - 1}"
            return [Problem("group", str(group), rule, "name a group of this cache")]
        wanted = {
            "layers": (host.layers, self.layer_groups[group], f"the layers of group {group}"),
            "row_bytes": (host.row_bytes, self.row_format.row_bytes, "the bytes of a row of this cache"),
        }
        return [
            Problem(f"host.{name}", str(found), f"must be {expected}, {what}", "pass the rows of this group")
            for name, (found, expected, what) in wanted.items()
            if found != expected
        ]

    def _seat_problems(self, seat: int, pages: Sequence[int]) -> list[Problem]:
        """Say what is wrong with the pages that a seat is to have."""
        demand_kinds(each(int, seat=seat), each(Sequence, pages=pages))
        problems = []
        if not 0 <= seat < self.geometry.seats:
            rule = f"must be 0 to {self.geometry.seats - 1}"
            problems.append(Problem("seat", str(seat), rule, "use a seat of this cache"))
        problems += self.geometry.map_problems(len(pages))
        if bad := [page for page in pages if type(page) is not int or not 0 <= page <= _MAX_PAGE]:
            rule = f"must be whole numbers, 0 to {_MAX_PAGE}"
            problems.append(Problem("pages", repr(bad[0]), rule, "give the pages of the lease"))
        return problems

    def _map(self, seat: int, pages: Sequence[int]) -> None:
        self.state.page_map[seat, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
        self.state.page_map[seat, len(pages) :] = EMPTY_PAGE
        self.state.mapped_pages[seat] = len(pages)
