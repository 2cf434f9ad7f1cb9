"""One call of sparse MLA decode, checked: what every backend is given.

::

    q      bf16 [batch, query row, head, 576]       rows   u8 [row, row_bytes], rows a pitch apart
    picks  i32  [batch, query row, top_k]  ───────────────► which rows; out of range: none
    counts i32  [batch, query row]                  only that many leading picks count
    sink   f32  [head]
    out    as q, 512 wide                           lse    f32 [batch, query row, head]
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

import torch

from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kernels.checks import Checks
from hisparse_svc.kernels.decode.rows import KEY_WIDTH, LATENT_WIDTH, ROW_FORMATS
from hisparse_svc.kernels.geometry import MAX_BATCH, MAX_QUERY_ROWS
from hisparse_svc.kernels.host_rows import CHUNK_BYTES
from hisparse_svc.kernels.kinds import demand_kinds, each

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from hisparse_svc.kernels.decode.rows import StoredRow
    from hisparse_svc.kernels.kinds import Given
    from hisparse_svc.kernels.split import PickPart

__all__ = ["MAX_HEADS", "MAX_PARTS", "MAX_PICKS", "DecodeCall", "check_parts", "make_call"]

MAX_HEADS = 128
"""Heads of one call: what MLA models have before any split over GPUs."""

MAX_PICKS = 2**24
"""Picks of one query: what a cluster's shares of them are computed from fits in 32 bits."""

QUERY_TYPES = (torch.bfloat16, torch.float32, torch.float64)
_MAX_ROWS = 2**31 - 1
_CALLER = "see the shapes that sparse_mla_decode documents"
_PART = "pass what sparse_mla_decode returned"
_SCALE = "MLA uses 1 / sqrt(192)"
_F32 = torch.finfo(torch.float32)


@dataclass(frozen=True)
class DecodeCall:
    """Tensors of one call of `sparse_mla_decode`, which says their shapes; they fit each other."""

    q: Tensor
    rows: Tensor
    picks: Tensor
    scale: float
    sink: Tensor | None
    counts: Tensor | None
    out: Tensor
    lse: Tensor
    max_sms: int
    late: PickPart | None = None
    """Picks behind the others: of rows that the kernel in front on the stream, the gather, is still writing."""

    @property
    def stored(self) -> StoredRow:
        """How rows are stored."""
        return ROW_FORMATS[self.rows.shape[1]]

    @property
    def queries(self) -> int:
        """Query rows over the batch."""
        return int(self.q.shape[0] * self.q.shape[1])

    @property
    def heads(self) -> int:
        """Heads of a query."""
        return int(self.q.shape[2])

    @property
    def top_k(self) -> int:
        """Picks of a query."""
        return int(self.picks.shape[2])


def lse_type(q: Tensor) -> torch.dtype:
    """Type of the log-sum-exp that goes with queries: float32, and float64 for float64."""
    return torch.float64 if q.dtype is torch.float64 else torch.float32


def make_call(
    q: Tensor,
    rows: Tensor,
    picks: Tensor,
    *,
    scale: float,
    sink: Tensor | None,
    counts: Tensor | None,
    out: Tensor | None,
    lse: Tensor | None,
    max_sms: int,
) -> DecodeCall:
    """Check the arguments of `sparse_mla_decode` and allocate what was not given.

    Raises:
        InvalidInput: With everything wrong about them.
    """
    numbers = {**each(Real, scale=scale), **each(int, max_sms=max_sms)}
    demand_kinds(
        each(torch.Tensor, q=q, rows=rows, picks=picks), _given(sink=sink, counts=counts, out=out, lse=lse), numbers
    )
    where = ", where the rows are"  # which stay there: what is elsewhere is to be moved
    with Checks(rows.device, where) as check:
        _check_query(check, q)
        _check_rows(check, rows)
    batch, query_rows, heads = (int(size) for size in q.shape[:3])
    reads = {"q": q, "rows": rows, "picks": picks, "counts": counts, "sink": sink}
    with Checks(rows.device, where) as check:
        _check_picks(check, q, picks)
        if counts is not None:
            check.tensor("counts", counts, (batch, query_rows), torch.int32, _CALLER)
        if sink is not None:
            check.tensor("sink", sink, (heads,), torch.float32, _CALLER)
        if out is not None:
            check.written("out", out, (batch, query_rows, heads, LATENT_WIDTH), q.dtype, _CALLER, reads=reads)
        if lse is not None:
            shape, reads = (batch, query_rows, heads), reads | {"out": out}
            check.written("lse", lse, shape, lse_type(q), _CALLER, reads=reads)
        if not _F32.tiny <= scale <= _F32.max:
            check.refuse("scale", scale, "must be positive and finite, in float32 too", _SCALE)
        if max_sms < 0:
            check.refuse("max_sms", max_sms, "must not be negative", "use 0 for all of them")
    if out is None:
        out = q.new_empty((batch, query_rows, heads, LATENT_WIDTH))
    if lse is None:
        lse = torch.empty((batch, query_rows, heads), dtype=lse_type(q), device=q.device)
    return DecodeCall(q, rows, picks, float(scale), sink, counts, out, lse, max_sms)


def _check_query(check: Checks, q: Tensor) -> None:
    if q.dim() != 4 or q.shape[-1] != KEY_WIDTH:
        check.refuse("q.shape", tuple(q.shape), f"must be (batch, query rows, heads, {KEY_WIDTH})", _CALLER)
        return
    if q.dtype not in QUERY_TYPES:
        check.refuse("q.dtype", q.dtype, "must be torch.bfloat16, float32 or float64", "kernels take bfloat16")
    check.packed("q", q, align_bytes=CHUNK_BYTES)
    _check_sizes(check, q.shape)


def _check_sizes(check: Checks, shape: Sequence[int]) -> None:
    """Check how much one call may be asked for; `shape` begins with the batch, the query rows and the heads."""
    check.between("batch", shape[0], MAX_BATCH, "split the call")
    check.between("query_rows", shape[1], MAX_QUERY_ROWS, "split the call")
    check.between("heads", shape[2], MAX_HEADS, "split the call")


def _check_picks(check: Checks, q: Tensor, picks: Tensor) -> None:
    """Check what decides which rows: for the same queries, at least one pick each."""
    if not check.dims("picks", picks, "batch, query row, top_k", _CALLER):
        return
    shape, queries = tuple(picks.shape), tuple(q.shape[:2])
    if shape[:2] != queries:
        rule = f"must have the batch and the query rows of q, {queries}"
        check.refuse("picks.shape", shape, rule, "pass queries and picks of one step")
    elif shape[2] < 1:
        check.refuse("picks.shape", shape, "must have room for a pick", "pass -1 for no pick")
    elif shape[2] > MAX_PICKS:
        check.refuse("picks.shape", shape, f"must have at most {MAX_PICKS} picks a query", "split them, and merge_lse")
    check.tensor("picks", picks, shape, torch.int32, _CALLER)


def _check_rows(check: Checks, rows: Tensor) -> None:
    known = ", ".join(f"{row.row_bytes} ({row.name})" for row in ROW_FORMATS.values())
    if rows.dim() != 2 or rows.shape[1] not in ROW_FORMATS:
        rule = f"must be (rows, bytes of a row), where a row has one of {known} bytes"
        check.refuse("rows.shape", tuple(rows.shape), rule, "pass the rows of one layer: HotCache.rows[group][layer]")
        return
    if not 1 <= rows.shape[0] <= _MAX_ROWS:
        check.refuse("rows.shape", tuple(rows.shape), f"must be 1 to {_MAX_ROWS} rows", "picks have 32 bits")
        return
    check.rows("rows", rows, (rows.shape[0], rows.shape[1]))


MAX_PARTS = 4
"""Parts of one merge."""


def check_parts(
    parts: list[tuple[Tensor, Tensor]], sink: Tensor | None, out: Tensor | None, lse: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Check what `merge_lse` is given, and give where to write, allocated if it was not given.

    Raises:
        InvalidInput: With everything wrong about it.
    """
    if not 1 <= len(parts) <= MAX_PARTS:
        rule = f"must be 1 to {MAX_PARTS} parts"
        raise InvalidInput([Problem("parts", str(len(parts)), rule, f"{_PART}, or merge in steps")])
    if any(not isinstance(part, tuple) or len(part) != 2 for part in parts):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise InvalidInput([Problem("parts", kinds, "must be pairs of an output and its log-sum-exp", _PART)])
    tensors = {f"parts[{index}].{name}": part for index, pair in enumerate(parts) for name, part in _named(pair)}
    demand_kinds(each(torch.Tensor, **tensors), _given(sink=sink, out=out, lse=lse))
    first_out, first_lse = parts[0]
    shape = tuple(first_out.shape)
    with Checks(first_out.device, ", where the first part is") as check:
        if len(shape) != 4 or shape[-1] != LATENT_WIDTH:
            check.refuse("parts[0].out.shape", shape, f"must be (batch, query rows, heads, {LATENT_WIDTH})", _CALLER)
        else:
            _check_sizes(check, shape)
        if first_out.dtype not in QUERY_TYPES:
            rule = "must be torch.bfloat16, float32 or float64"
            check.refuse("parts[0].out.dtype", first_out.dtype, rule, _PART)
        for index, (part, part_lse) in enumerate(parts):
            check.tensor(f"parts[{index}].out", part, shape, first_out.dtype, _CALLER, align_bytes=CHUNK_BYTES)
            check.tensor(f"parts[{index}].lse", part_lse, shape[:-1], lse_type(first_out), _CALLER)
        if sink is not None:
            check.tensor("sink", sink, shape[-2:-1], torch.float32, _CALLER)
        if out is not None:
            reads = _others(out, tensors | {"sink": sink, "lse": lse})
            check.written("out", out, shape, first_out.dtype, _CALLER, reads=reads)
        if lse is not None:
            reads = _others(lse, tensors | {"sink": sink})
            check.written("lse", lse, shape[:-1], lse_type(first_out), _CALLER, reads=reads)
    return torch.empty_like(first_out) if out is None else out, torch.empty_like(first_lse) if lse is None else lse


def _given(**tensors: object) -> Given:
    """Those tensors that were given must be tensors."""
    return each(torch.Tensor, **{name: tensor for name, tensor in tensors.items() if tensor is not None})


def _named(pair: tuple[Tensor, Tensor]) -> tuple[tuple[str, Tensor], tuple[str, Tensor]]:
    return ("out", pair[0]), ("lse", pair[1])


def _others(written: Tensor, read: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    """What is read, without the very tensor that is written: each number of it is read before it is."""
    return {
        name: tensor
        for name, tensor in read.items()
        if tensor is not None and (tensor.data_ptr(), tensor.shape) != (written.data_ptr(), written.shape)
    }
