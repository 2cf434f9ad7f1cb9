"""What a decode session is asked, checked before anything changes: each function raises everything wrong together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kernels import PAGE_ROWS
from hisparse_svc.kernels.index.call import KEY_TYPES
from hisparse_svc.kernels.index.keys import INDEX_WIDTH
from hisparse_svc.kernels.kinds import demand_kinds, each
from hisparse_svc.rpc.values import Lease

if TYPE_CHECKING:
    from torch import Tensor

    from hisparse_svc.engine.decode_shape import DecodeShape
    from hisparse_svc.engine.running import Running

__all__ = ["check_extension", "check_join", "check_prefill", "check_step", "check_take_back"]


class _Problems(list[Problem]):
    def refuse(self, field: str, value: object, rule: str, remedy: str) -> None:
        self.append(Problem(field, str(value), rule, remedy))

    def check(self) -> None:
        if self:
            raise InvalidInput(self)


def check_join(
    shape: DecodeShape, host_pages: int, lease: Lease | None, pages: Sequence[int], *, length: int, taken: set[str]
) -> None:
    """Check who joins: pages of this pool, no lease twice, and a length that they hold."""
    demand_kinds(each(int, length=length), each(Sequence, pages=pages))
    problems = _Problems()
    held = min(shape.pages, host_pages)
    whole = all(type(page) is int for page in pages)
    if not pages or not whole or not 0 <= min(pages) <= max(pages) < held or len(set(pages)) != len(pages):
        rule = f"must be different pages of 0 to {held - 1}, at least one"
        problems.refuse("pages", list(pages)[:8], rule, "give a lease of this pool, or its pages")
        problems.check()
    problems += shape.geometry.map_problems(len(pages))
    room = min(len(pages) * PAGE_ROWS, shape.geometry.longest_at_hand)
    shared = 0
    if lease is not None:
        room, shared = min(room, lease.tokens), lease.shared_pages * PAGE_ROWS
        if lease.id in taken:
            problems.refuse("lease", lease.id, "must not run in this session already", "admit each request for itself")
    if not shared <= length <= room:
        rule = f"must be {shared} to {room}: what it shares with others, and what it may have"
        problems.refuse("length", length, rule, "leave it out, or give the tokens that are in host memory")
    problems.check()


def check_extension(shape: DecodeShape, request: Running, lease: Lease) -> None:
    """Check that a lease is a request's own, grown."""
    demand_kinds(each(Lease, lease=lease))
    problems = _Problems()
    if request.lease is None or lease.id != request.lease.id:
        own = request.lease.id if request.lease else "none"
        problems.refuse("lease", lease.id, f"must be the request's own, {own}", "pass what Extend answered")
    elif lease.page_numbers[: len(request.pages)] != request.pages:
        rule = "must begin with the pages that the request has"
        problems.refuse("lease.extents", lease.extents, rule, "pass what Extend answered")
    problems += shape.geometry.map_problems(len(lease.page_numbers))
    problems.check()


def check_prefill(request: Running, place: int, rows: Tensor, keys: Tensor | None, first: int) -> None:
    """Check rows of a prefill, and the keys beside them; `place` is the layer's in its group."""
    demand_kinds(
        each(torch.Tensor, rows=rows), each(int, first=first), each(torch.Tensor, keys=keys) if keys is not None else {}
    )
    problems = _Problems()
    tokens = int(rows.shape[0]) if rows.dim() == 2 else 0
    if not tokens:
        problems.refuse("rows.shape", tuple(rows.shape), "must be [token, bytes of a row]", "pass the layer's new rows")
    if (keys is None) == (place == 0):
        rule = "must be given for the first layer of a group, and for no other"
        problems.refuse("keys", "none" if keys is None else "given", rule, f"the layer is number {place} of its group")
    elif keys is not None and tuple(keys.shape) != (tokens, INDEX_WIDTH):
        rule = f"must be ({tokens}, {INDEX_WIDTH}), of {tokens} tokens as the rows are"
        problems.refuse("keys.shape", tuple(keys.shape), rule, "pass both of the same tokens")
    elif keys is not None and keys.dtype not in KEY_TYPES:
        rule = "must be torch.bfloat16 or torch.float32"
        problems.refuse("keys.dtype", keys.dtype, rule, "convert them to bfloat16")
    if first < request.first_own_token or first + tokens > request.room_tokens:
        rule = f"must lie in {request.first_own_token} to {request.room_tokens}, the pages that are its own"
        problems.refuse("tokens", f"{first} to {first + tokens}", rule, "write only what is not there yet")
    problems.check()


def check_step(shape: DecodeShape, requests: Sequence[Running], batch: int) -> None:
    """Check who takes part in a step."""
    demand_kinds(each(int, batch=batch))
    problems = _Problems()
    geometry = shape.geometry
    seats = [request.seat for request in requests]
    if len(set(seats)) != len(seats):
        problems.refuse("requests", seats, "must be different ones", "name each request once")
    least = max(1, len(seats))
    if not least <= batch <= geometry.seats:
        remedy = "take fewer requests, or a larger batch" if seats else "name a request, or give the size of the batch"
        problems.refuse("batch", batch, f"must be {least} to {geometry.seats}", remedy)
    tokens = geometry.query_rows
    for request in requests:
        if request.length + tokens > request.limit_tokens:
            rule = f"and {tokens} more must be at most {request.limit_tokens}, what it may have"
            remedy = "extend its lease and pass it to `extend`, or let the request leave"
            problems.refuse("length", request.length, rule, remedy)
    problems.check()


def check_take_back(requests: Sequence[Running], tokens: Sequence[int]) -> None:
    """Check that only what the last step added is taken back, and its first token kept."""
    problems = _Problems()
    if len(requests) != len(tokens) or len(set(requests)) != len(requests):
        rule = f"must be one for each of {len(requests)} different requests"
        problems.refuse("tokens", list(tokens), rule, "name each request once, with its count")
        problems.check()
    for request, count in zip(requests, tokens, strict=True):
        demand_kinds(each(int, tokens=count))
        if not 0 <= count <= request.refusable_tokens:
            rule = f"must be 0 to {request.refusable_tokens}, what its last step added beyond one token"
            problems.refuse("tokens", count, rule, "take drafts back once, after the step that added them")
    problems.check()
