"""Decoding of many requests whose KV lives in host memory: who runs, on which seat, how far, and what is durable.

::

    lease ── join ──► seat ── step, step, step … ──► leave ──► lease released
                       └─ retract … resume ─┘

    step:   host: seats of the batch ──► device: LayerStep, eager or a replayed graph ──► host: lengths

The same class runs on the CPU, where kernels are their references and a captured step is an eager one.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import torch

from hisparse_svc.client import HeldLease
from hisparse_svc.engine.captured_step import CapturedStep
from hisparse_svc.engine.decode_memory import DecodeMemory
from hisparse_svc.engine.durability import Durability
from hisparse_svc.engine.layer_step import LayerStep, Overlap, overlap_of
from hisparse_svc.engine.metering import SwapInMeter
from hisparse_svc.engine.parking import park_seat, unpark_seat
from hisparse_svc.engine.roster import Roster
from hisparse_svc.engine.running import NotRunning, Running
from hisparse_svc.engine.session_checks import check_extension, check_join, check_prefill, check_take_back
from hisparse_svc.engine.stepping import Stepping
from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kernels import PAGE_ROWS, backup_pages, write_index_keys
from hisparse_svc.kernels.kinds import demand_kinds, each
from hisparse_svc.rpc.values import Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from hisparse_svc.engine.decode_shape import DecodeShape
    from hisparse_svc.engine.host_copy import HostCopy
    from hisparse_svc.rpc.values import Released

__all__ = ["DecodeSession", "Leases"]


class Leases(Protocol):
    """What a session asks of the service; `Client` is one."""

    def commit(self, lease_id: str, epoch: int) -> Lease:
        """Commit a lease."""

    def release(self, lease_id: str) -> Released:
        """Release it."""


class DecodeSession:
    """Requests that one rank decodes together.

    Attributes:
        memory: Everything allocated.
        overlap: What of the swap-in is hidden.
        stepping: What surrounds a step's device work.

    Example:
        >>> import torch
        >>> from hisparse_svc.engine import MLA_BF16, DecodeSession, DecodeShape, Geometry, HostCopy, IndexInputs
        >>> shape = DecodeShape(Geometry(seats=2, hot_rows=64, top_k=8, context_tokens=256), (1,), MLA_BF16, pages=8)
        >>> session = DecodeSession(shape, HostCopy.allocate(shape), "cpu")
        >>> request = session.join(pages=[5, 2])
        >>> with session.step([request]) as step:
        ...     inputs = IndexInputs(torch.zeros(1, 1, 4, 128), torch.ones(1, 1, 4), torch.zeros(1, 1, 128))
        ...     out = step.attend(
        ...         0, torch.zeros(1, 1, 8, 576, dtype=torch.bfloat16), torch.ones(1, 1, 576), scale=1, index=inputs
        ...     )
        >>> request.length, out[0, 0, 0, 0].item()
        (1, 1.0)
    """

    def __init__(
        self,
        shape: DecodeShape,
        host: HostCopy,
        device: torch.device | str,
        *,
        leases: Leases | None = None,
        overlap: Overlap = Overlap.PREFETCH,
        metered: bool = False,
    ) -> None:
        """Allocate everything, with all seats free.

        Args:
            shape: Shape of it.
            host: Host memory, `HostCopy.of_pool` where there is a service.
            device: Where to decode; `"cpu"` runs the reference kernels.
            leases: Who commits and releases leases, `HostPool.client`.
            overlap: What of the swap-in to hide.
            metered: Count hits and misses of each layer group, for `meter.report`.

        Raises:
            InvalidInput: The host memory is of another shape, index keys are pooled, or an overlap that there is not.
            DeviceUnavailable: The device is a GPU, and there is none.
        """
        self.memory = DecodeMemory.allocate(shape, host, device)
        if metered:
            self.memory.meter = SwapInMeter(shape, device)
        self.overlap = overlap_of(overlap)
        self._leases = leases
        self._roster = Roster(shape.geometry.seats)
        self._durability = Durability(self.memory)
        self.stepping = Stepping(self.memory, self._roster, self._durability)

    @property
    def shape(self) -> DecodeShape:
        """Shape of the session."""
        return self.memory.shape

    @property
    def meter(self) -> SwapInMeter | None:
        """What it swapped in; `None` unless it was made `metered`."""
        return self.memory.meter

    @property
    def free_seats(self) -> int:
        """Seats that nobody has."""
        return self._roster.free_seats

    @property
    def running(self) -> dict[int, Running]:
        """Requests that are on a seat, by seat."""
        return self._roster.running

    # --- who runs ---

    def join(
        self,
        lease: Lease | HeldLease | None = None,
        *,
        pages: Sequence[int] = (),
        length: int | None = None,
    ) -> Running:
        """Give a request a seat, and commit its lease if it is not yet.

        Args:
            lease: What reserves its pages; what `Client.admit` gave will do, and `leave` releases it.
            pages: Its pages, in token order, where there is no lease.
            length: Tokens whose rows and index keys are in host memory already: a shared prefix, another process's
                prefill, what a dead engine had made durable. Their index keys are loaded. Where not given, those of
                the pages that the lease shares; the request writes behind them.

        Raises:
            InvalidInput: No free seat, a lease that runs here already, pages or a length that do not fit, or a step is
                open.
            AttachFailed: The pool was closed.
            HiSparseError: The service refuses the lease.
        """
        self._between_steps()
        granted = lease.lease if isinstance(lease, HeldLease) else lease
        if granted is not None:
            demand_kinds(each(Lease, lease=granted))
            if pages:
                rule = "must not be given beside a lease, which names its pages"
                raise InvalidInput([Problem("pages", str(list(pages)[:8]), rule, "give one of them")])
            pages = granted.page_numbers
        shared = granted.shared_pages * PAGE_ROWS if granted is not None else 0
        length = shared if length is None else length
        host_pages = min(rows.pages for rows in self.memory.host.rows)
        check_join(self.shape, host_pages, granted, pages, length=length, taken=self._roster.leases)
        seat = self._roster.free_seat()
        if granted is not None and self._leases is not None:
            granted = self._leases.commit(granted.id, granted.epoch)
        full = length // PAGE_ROWS
        request = Running(
            tuple(pages),
            length,
            self.shape.geometry.context_tokens,
            first_own_token=shared,
            lease=granted,
            durable_tokens=full * PAGE_ROWS,
            backed_up_pages=full,
        )
        self.memory.cache.take_seat(seat, request.pages, length)
        self.memory.load_keys(request.pages[: -(-length // PAGE_ROWS)])
        self._roster.sit(request, seat)
        return request

    def extend(self, request: Running, lease: Lease) -> None:
        """Let a request grow into its grown lease.

        Args:
            request: Which, running or retracted.
            lease: Its lease, as `Extend` answered.

        Raises:
            NotRunning: It is not of this session.
            InvalidInput: The lease is another's, or longer than the longest request; or a step is open.
        """
        self._between_steps()
        seat = None if request in self._roster.parked else self._roster.seat(request)
        check_extension(self.shape, request, lease)
        pages = lease.page_numbers
        if seat is not None:
            self.memory.cache.extend_seat(seat, pages)
        elif request.parked is not None:
            request.parked = replace(request.parked, pages=pages)
        request.pages, request.lease = pages, lease

    def leave(self, request: Running) -> None:
        """Take a request out, running or retracted, and release its lease once no copy can touch its pages any more.

        A lease of a pool that was closed is the service's already and is not released again.

        Raises:
            NotRunning: It is not of this session.
            InvalidInput: A step is open.
            HiSparseError: The service cannot be reached; the request is out all the same.
        """
        self._roster.demand_no_step()
        if request not in self._roster.parked:
            self.memory.cache.release_seat(self._roster.seat(request))
        self._roster.rise(request)
        self.settle(wait=True)
        if request.lease is not None and self._leases is not None and self.memory.host.attached:
            self._leases.release(request.lease.id)

    def retract(self, request: Running) -> None:
        """Take a request off its seat; it keeps its pages, and `resume` continues it with the same rows hot.

        Raises:
            NotRunning: It has no seat.
            InvalidInput: A step is open.
        """
        self._between_steps()
        seat = self._roster.seat(request)
        self._durability.confirm([request])
        self.settle(wait=True)
        request.parked = park_seat(self.memory.cache, seat)
        request.refusable_tokens = 0
        self._roster.rise(request)
        self._roster.parked.add(request)

    def resume(self, request: Running) -> None:
        """Give a retracted request a seat again.

        Raises:
            NotRunning: It was not retracted here.
            InvalidInput: No free seat, or a step is open.
            AttachFailed: The pool was closed.
        """
        self._between_steps()
        if request not in self._roster.parked or request.parked is None:
            raise NotRunning("the request is not retracted: only what `retract` took off its seat here can be resumed")
        seat = self._roster.free_seat()
        unpark_seat(self.memory.cache, seat, request.parked, self.memory.host.rows)
        self._roster.sit(request, seat)

    # --- prefill ---

    def prefill(
        self, request: Running, layer: int, rows: Tensor, *, keys: Tensor | None = None, first: int | None = None
    ) -> None:
        """Write consecutive tokens of one layer to host memory in bulk; `prefilled` makes them the request's.

        A reader keeps the index keys alone: its writer brings the rows to host memory.

        Args:
            request: Whose; it has a seat.
            layer: Which layer.
            rows: Rows as stored, `u8 [token, row_bytes]`, on the session's device.
            keys: Index keys of the tokens, bfloat16 or float32, `[token, 128]`, for the first layer of a group.
            first: The first of them; where not given, the first that the request does not share.

        Raises:
            NotRunning: The request has no seat.
            InvalidInput: A tensor or a number does not fit, the pages are shared with others, or a step is open.
            AttachFailed: The pool was closed.
        """
        self._between_steps()
        self._roster.seat(request)
        memory = self.memory
        group, place = memory.shape.place(layer)
        first = request.first_own_token if first is None else first
        check_prefill(request, place, rows, keys, first)
        pages = torch.tensor(request.pages, dtype=torch.int32, device=memory.cache.device)
        if memory.host.writable:
            backup_pages(
                memory.shape.geometry,
                memory.host.rows[group],
                rows.unsqueeze(0),
                pages,
                first_token=first,
                first_layer=place,
            )
        if keys is not None:
            write_index_keys(memory.keys[group], keys, pages, first_token=first)

    def prefilled(self, request: Running, length: int) -> None:
        """Say that the first `length` tokens were prefilled, in every layer: decoding goes on behind them.

        It is the caller who knows that they were; nothing is hot yet.

        Raises:
            NotRunning: The request has no seat.
            InvalidInput: The length does not fit, or a step is open.
        """
        self._between_steps()
        seat = self._roster.seat(request)
        demand_kinds(each(int, length=length))
        if not request.first_own_token <= length <= request.limit_tokens:
            rule = f"must be {request.first_own_token} to {request.limit_tokens}"
            raise InvalidInput([Problem("length", str(length), rule, "say how many tokens were prefilled")])
        self.memory.cache.take_seat(seat, request.pages, length)
        request.length = length
        request.refusable_tokens = 0
        self._durability.confirm([request])

    # --- steps ---

    @contextmanager
    def step(self, requests: Sequence[Running], *, batch: int = 0) -> Iterator[LayerStep]:
        """One eager step: in the block, call `attend` for every layer.

        Each request gets as many tokens more as the geometry has query rows: one, and its drafts. `take_back` shortens
        it by those that were refused, so a lease needs room for the drafts of its last step too.

        Args:
            requests: Who takes part, in the order of the batch's tensors.
            batch: Size of the batch, padded at its end; 0: as many as there are requests.

        Raises:
            NotRunning: A request has no seat.
            InvalidInput: A request is named twice or has no room left, the batch is too small, or a step is open; also
                whatever `attend` raises. A step that fails takes nobody further.
            AttachFailed: The pool was closed.
        """
        with self.stepping.around(requests, batch) as plan:
            step = LayerStep(self.memory, plan, self.overlap)
            step.advance()
            yield step
            step.finish()

    def capture(
        self, body: Callable[[LayerStep], None], batch: int, *, overlaps: Sequence[Overlap] = ()
    ) -> CapturedStep:
        """Capture a step for batches of up to `batch` requests.

        Args:
            body: Calls `attend` for every layer, reading and writing tensors at fixed addresses. It runs twice before
                each capture, with nobody in the batch; on the CPU once.
            batch: Requests of it, padded ones included.
            overlaps: Ways to overlap, each captured; the faster one is replayed, on the CPU the first. The session's
                alone where none is named.

        Raises:
            InvalidInput: The batch is larger than there are seats, or whatever `attend` raises.
        """
        ways = tuple(map(overlap_of, overlaps)) or (self.overlap,)
        return CapturedStep(self.memory, self.stepping, body, batch, ways)

    def take_back(self, requests: Sequence[Running], tokens: Sequence[int]) -> None:
        """Shorten requests by the last step's refused drafts.

        Args:
            requests: Whose.
            tokens: How many of each; at least one token of the step is kept.

        Raises:
            NotRunning: A request has no seat.
            InvalidInput: More than the last step added, a request twice, or a step is open.
        """
        self._between_steps()
        seats = [self._roster.seat(request) for request in requests]
        check_take_back(requests, tokens)
        if not seats:
            return
        device = self.memory.cache.device
        counts = torch.tensor(list(tokens), dtype=torch.int64, device=device)
        self.memory.cache.advance(torch.tensor(seats, dtype=torch.int32, device=device), -counts)
        for request, count in zip(requests, tokens, strict=True):
            request.length -= count
            request.refusable_tokens = 0
        self._durability.confirm(requests)

    def settle(self, *, wait: bool = False) -> None:
        """Bring every request's `durable_tokens` up to date.

        Args:
            wait: Wait for the copies that are under way.
        """
        self._durability.settle(wait=wait)

    # --- inside ---

    def _between_steps(self) -> None:
        self.memory.host.check_attached()
        self._roster.demand_no_step()
