"""Decoding of many requests whose KV lives in host memory: who runs, on which seat, how far, and what is durable.

::

    lease ── join ──► seat ── step, step, step … ──► leave ──► lease released
                       └─ retract … resume ─┘

    step:   host: seats of the batch ──► device: LayerStep, eager or a replayed graph ──► host: lengths

The same class runs on the CPU, where kernels are their references and a captured step is an eager one.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch

from hisparse_svc.engine.captured_step import CapturedStep
from hisparse_svc.engine.decode_memory import DecodeMemory
from hisparse_svc.engine.layer_step import LayerStep, Overlap
from hisparse_svc.engine.parking import park_seat, unpark_seat
from hisparse_svc.engine.running import NotRunning, Running
from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kernels import PAGE_ROWS, backup_pages, write_index_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from hisparse_svc.engine.decode_shape import DecodeShape
    from hisparse_svc.engine.host_copy import HostCopy
    from hisparse_svc.rpc.values import Lease, Released

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
        running: Requests that are on a seat, by seat.

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
    ) -> None:
        """Allocate everything, with all seats free.

        Args:
            shape: Shape of it.
            host: Host memory, `HostCopy.of_pool` where there is a service.
            device: Where to decode; `"cpu"` runs the reference kernels.
            leases: Who commits and releases leases, `HostPool.client`.
            overlap: What of the swap-in to hide.

        Raises:
            InvalidInput: The host memory is of another shape.
        """
        self.memory = DecodeMemory.allocate(shape, host, device)
        self.running: dict[int, Running] = {}
        self.overlap = overlap
        self._leases = leases
        self._parked: set[Running] = set()
        self._unsettled: list[tuple[Any, dict[Running, int]]] = []

    @property
    def shape(self) -> DecodeShape:
        """Shape of the session."""
        return self.memory.shape

    @property
    def free_seats(self) -> int:
        """Seats that nobody has."""
        return self.shape.geometry.seats - len(self.running)

    # --- who runs ---

    def join(self, lease: Lease | None = None, *, pages: Sequence[int] = (), length: int = 0) -> Running:
        """Give a request a seat, and commit its lease if it is not yet.

        Args:
            lease: What reserves its pages.
            pages: Its pages, in token order, where there is no lease.
            length: Tokens whose rows and index keys are in host memory already: a shared prefix, another process's
                prefill, what a dead engine had made durable. Their index keys are loaded.

        Raises:
            InvalidInput: No free seat, or pages and length that do not fit.
            HiSparseError: The service refuses the lease.
        """
        if lease is not None:
            pages = [page for run in lease.extents for page in range(run.first_page, run.first_page + run.page_count)]
        seat = self._free_seat()
        self._check_pages(pages)
        if lease is not None and self._leases is not None:
            lease = self._leases.commit(lease.id, lease.epoch)
        full = length // PAGE_ROWS
        request = Running(tuple(pages), length, lease, seat, durable_tokens=full * PAGE_ROWS, backed_up_pages=full)
        self.memory.cache.take_seat(seat, request.pages, length)
        self.memory.load_keys(request.pages[: -(-length // PAGE_ROWS)])
        self.running[seat] = request
        return request

    def leave(self, request: Running) -> None:
        """Take a request out, running or retracted, and release its lease once no copy can touch its pages any more.

        Raises:
            NotRunning: It is not of this session.
            HiSparseError: The service cannot be reached; the request is out all the same.
        """
        if request in self._parked:
            self._parked.discard(request)
        else:
            self.memory.cache.release_seat(self._seat(request))
            del self.running[self._seat(request)]
            request.seat = None
        self.settle(wait=True)
        if request.lease is not None and self._leases is not None:
            self._leases.release(request.lease.id)

    def retract(self, request: Running) -> None:
        """Take a request off its seat; it keeps its pages, and `resume` continues it with the same rows hot.

        Raises:
            NotRunning: It has no seat.
        """
        seat = self._seat(request)
        self.settle(wait=True)
        self._back_up_keys([request])
        request.parked = park_seat(self.memory.cache, seat)
        request.seat = None
        del self.running[seat]
        self._parked.add(request)

    def resume(self, request: Running) -> None:
        """Give a retracted request a seat again.

        Raises:
            NotRunning: It was not retracted here.
            InvalidInput: No free seat.
        """
        if request not in self._parked or request.parked is None:
            raise NotRunning("the request is not retracted: only what `retract` took off its seat can be resumed")
        seat = self._free_seat()
        unpark_seat(self.memory.cache, seat, request.parked, self.memory.host.rows)
        self._parked.discard(request)
        request.seat, request.parked = seat, None
        self.running[seat] = request

    # --- prefill ---

    def prefill(
        self, request: Running, layer: int, rows: Tensor, *, keys: Tensor | None = None, first: int = 0
    ) -> None:
        """Write consecutive tokens of one layer to host memory in bulk; `prefilled` makes them the request's.

        A reader keeps the index keys alone: its writer brings the rows to host memory.

        Args:
            request: Whose; it has a seat.
            layer: Which layer.
            rows: Rows as stored, `u8 [token, row_bytes]`, on the session's device.
            keys: Index keys of the tokens, bfloat16 or float32, `[token, 128]`, for the first layer of a group.
            first: The first of them.

        Raises:
            NotRunning: The request has no seat.
            InvalidInput: A tensor or a number does not fit.
        """
        self._seat(request)
        memory = self.memory
        group, place = memory.shape.place(layer)
        if (keys is None) == (place == 0):
            rule = "must be given for the first layer of a group, and for no other"
            problem = Problem("keys", "none" if keys is None else "given", rule, f"layer {layer} is number {place}")
            raise InvalidInput([problem])
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

        Raises:
            NotRunning: The request has no seat.
            InvalidInput: The length does not fit.
        """
        self.memory.cache.take_seat(self._seat(request), request.pages, length)
        request.length = length
        self._back_up_keys([request])
        self._record([request])

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
            InvalidInput: A request is named twice or has no room left, or the batch is too small; also whatever
                `attend` raises. A step that fails takes nobody further.
        """
        step = self.begin(requests, batch)
        try:
            step.advance()
            yield step
            step.finish()
        except BaseException:
            for request in requests:  # what is hot is unknown now: start cold
                self.memory.cache.take_seat(self._seat(request), request.pages, request.length)
            raise
        self.end(requests)

    def capture(
        self, body: Callable[[LayerStep], None], batch: int, *, overlaps: Sequence[Overlap] = ()
    ) -> CapturedStep:
        """Capture a step for batches of up to `batch` requests.

        Args:
            body: Calls `attend` for every layer, reading and writing tensors at fixed addresses. It runs twice before
                each capture, with nobody in the batch.
            batch: Requests of it, padded ones included.
            overlaps: Ways to overlap, each captured; the faster one is replayed. The session's alone where none is
                named.

        Raises:
            InvalidInput: The batch is larger than there are seats, or whatever `attend` raises.
        """
        return CapturedStep(self, body, batch, tuple(overlaps) or (self.overlap,))

    def take_back(self, requests: Sequence[Running], tokens: Sequence[int]) -> None:
        """Shorten requests by the last step's refused drafts.

        Args:
            requests: Whose.
            tokens: How many of each, fewer than the step added.

        Raises:
            NotRunning: A request has no seat.
            InvalidInput: As many tokens as a step adds, or more.
        """
        added = self.shape.geometry.query_rows
        for count in tokens:
            if not 0 <= count < added:
                rule = f"must be 0 to {added - 1}"
                raise InvalidInput([Problem("tokens", str(count), rule, "a step's last token at least is kept")])
        device = self.memory.cache.device
        seats = torch.tensor([self._seat(request) for request in requests], dtype=torch.int32, device=device)
        self.memory.cache.advance(seats, -torch.tensor(list(tokens), device=device))
        for request, count in zip(requests, tokens, strict=True):
            request.length -= count

    def settle(self, *, wait: bool = False) -> None:
        """Bring every request's `durable_tokens` up to date.

        Args:
            wait: Wait for the copies that are under way.
        """
        while self._unsettled:
            done, lengths = self._unsettled[0]
            if done is not None:
                if wait:
                    done.synchronize()
                elif not done.query():
                    return
            for request, durable in lengths.items():
                request.durable_tokens = max(request.durable_tokens, durable)
            self._unsettled.pop(0)

    # --- halves of a step, for CapturedStep ---

    def begin(self, requests: Sequence[Running], batch: int) -> LayerStep:
        """Do what comes before a step's device work: check, and put the seats where it reads them.

        Args:
            requests: As `step`.
            batch: As `step`.

        Raises:
            NotRunning: As `step`.
            InvalidInput: As `step`.
        """
        batch = batch or len(requests)
        self._check_step(requests, batch)
        self._back_up_keys(requests)
        plan = self.memory.cache.plan.first(batch)
        seats = torch.full((batch,), -1, dtype=torch.int32)
        seats[: len(requests)] = torch.tensor([request.seat for request in requests], dtype=torch.int32)
        plan.seats.copy_(seats)
        return LayerStep(self.memory, plan, self.overlap)

    def end(self, requests: Sequence[Running]) -> None:
        """Do what comes behind it: the requests are longer now."""
        for request in requests:
            request.length += self.shape.geometry.query_rows
        self._record(requests)
        self.settle()

    # --- inside ---

    def _record(self, requests: Sequence[Running]) -> None:
        """Note that all copies started so far make these requests' backed up pages durable, once they are done."""
        done: Any = None
        if self.memory.cache.device.type == "cuda":
            event: Any = torch.cuda.Event
            done = event()
            done.record()
        self._unsettled.append((done, {request: request.backed_up_pages * PAGE_ROWS for request in requests}))

    def _back_up_keys(self, requests: Sequence[Running]) -> None:
        """Copy index keys of pages that have become full; lengths are final here, refused drafts taken back."""
        for request in requests:
            full = request.length // PAGE_ROWS
            self.memory.back_up_keys(request.pages[request.backed_up_pages : full])
            request.backed_up_pages = max(request.backed_up_pages, full)

    def _free_seat(self) -> int:
        for seat in range(self.shape.geometry.seats):
            if seat not in self.running:
                return seat
        rule = f"must be fewer than {self.shape.geometry.seats}, the seats of this session"
        raise InvalidInput([Problem("running requests", str(len(self.running)), rule, "retract one, or wait")])

    def _seat(self, request: Running) -> int:
        seat = request.seat
        if seat is None or self.running.get(seat) is not request:
            raise NotRunning("the request has no seat here: it left, was retracted, or is of another session")
        return seat

    def _check_pages(self, pages: Sequence[int]) -> None:
        held = min(self.shape.pages, *(rows.pages for rows in self.memory.host.rows))
        if not pages or not 0 <= min(pages) <= max(pages) < held or len(set(pages)) != len(pages):
            rule = f"must be different pages of 0 to {held - 1}, at least one"
            raise InvalidInput([Problem("pages", f"{list(pages)[:8]}", rule, "give the pages of a lease of this pool")])

    def _check_step(self, requests: Sequence[Running], batch: int) -> None:
        problems = []

        def refuse(field: str, value: object, rule: str, remedy: str) -> None:
            problems.append(Problem(field, str(value), rule, remedy))

        seats = [self._seat(request) for request in requests]
        if len(set(seats)) != len(seats):
            refuse("requests", seats, "must be different ones", "name each request once")
        if not max(1, len(seats)) <= batch <= self.shape.geometry.seats:
            most = self.shape.geometry.seats
            refuse("batch", batch, f"must be {max(1, len(seats))} to {most}", "take fewer requests, or a larger batch")
        tokens = self.shape.geometry.query_rows
        for request in requests:
            if request.length + tokens > request.limit_tokens:
                rule = f"and {tokens} more must be at most {request.limit_tokens}, what its lease reserves"
                refuse("length", request.length, rule, "extend the lease, or let the request leave")
        if problems:
            raise InvalidInput(problems)
