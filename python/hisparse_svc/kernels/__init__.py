"""Kernels of the hot cache: indexer, resolve, gather, append, backup, and sparse attention over its rows.

::

    index keys ── indexer ──► top-k ── resolve ──► rows to attend to, misses
                                          └─ gather ──► missing rows, host → hot ──► sparse_mla_decode
    attention's KV write ── append ──► newest page ── backup ──► host

CPU tensors run the reference, CUDA tensors the kernels. Every function checks its arguments, then fills tensors it was
given: nothing is allocated, nothing waits, and all may be captured in a CUDA graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hisparse_svc import extras

with extras.needed(__name__, "engine"):
    import torch

from hisparse_svc.kernels import reference
from hisparse_svc.kernels.checks import Checks, check_ids, check_tokens, step_kinds
from hisparse_svc.kernels.decode.api import attend_beside_gather, merge_lse, sparse_mla_decode
from hisparse_svc.kernels.devices import demand_cuda, usable_device
from hisparse_svc.kernels.errors import CompileFailed, DeviceUnavailable
from hisparse_svc.kernels.fp8 import quantise
from hisparse_svc.kernels.geometry import (
    EMPTY_PAGE,
    MAX_HOT_ROWS,
    MAX_QUERY_ROWS,
    NEWEST_TOKENS,
    PAGE_ROWS,
    Geometry,
)
from hisparse_svc.kernels.host_rows import HostRows
from hisparse_svc.kernels.index.api import append_index_keys, index_logits, index_top_k, indexer, write_index_keys
from hisparse_svc.kernels.index.call import logits_shape as index_logits_shape
from hisparse_svc.kernels.index.keys import INDEX_F32, INDEX_FP8, IndexKeys
from hisparse_svc.kernels.kinds import demand_kinds, each
from hisparse_svc.kernels.placement import GATHER_BLOCKS, gather_blocks
from hisparse_svc.kernels.split import SplitPicks
from hisparse_svc.kernels.tensors import SeatState, StepPlan

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "EMPTY_PAGE",
    "GATHER_BLOCKS",
    "INDEX_F32",
    "INDEX_FP8",
    "MAX_HOT_ROWS",
    "MAX_QUERY_ROWS",
    "NEWEST_TOKENS",
    "PAGE_ROWS",
    "CompileFailed",
    "DeviceUnavailable",
    "Geometry",
    "HostRows",
    "IndexKeys",
    "SeatState",
    "SplitPicks",
    "StepPlan",
    "append",
    "append_index_keys",
    "attend_beside_gather",
    "backup",
    "backup_pages",
    "check_ids",
    "demand_cuda",
    "gather",
    "gather_blocks",
    "index_logits",
    "index_logits_shape",
    "index_top_k",
    "indexer",
    "merge_lse",
    "quantise",
    "resolve",
    "sparse_mla_decode",
    "usable_device",
    "write_index_keys",
]


def resolve(
    geometry: Geometry, words: Tensor, state: SeatState, plan: StepPlan, *, split: SplitPicks | None = None
) -> None:
    """Fill the plan's rows, misses and counts, and bring the words of one group up to date.

    A token picked twice is one row and one miss. Where the *same* query row picks it twice and its context is short
    (`resolve_table.cu`), which of the two places it is listed for, and so which slot it takes, may differ between
    runs; a top-k has no such duplicates. All else is the same bit by bit each time.

    Args:
        geometry: Shape of the hot cache.
        words: Words of the group, `[seats, hot_rows]`.
        state: Lengths and newest tokens of the seats.
        plan: Seats and picks of this step; a seat occurs once.
        split: Where the plan's rows also go, hits and misses apart.

    Raises:
        InvalidInput: With everything wrong about the tensors.
        DeviceUnavailable: The GPU cannot run it.
        CompileFailed: The kernel does not compile.
    """
    demand_kinds(each(torch.Tensor, words=words), step_kinds(geometry, state, plan))
    if split is not None:
        demand_kinds(each(SplitPicks, split=split))
    with Checks(words.device) as check:
        check.words(geometry, words)
        check.state(geometry, state)
        check.plan(geometry, plan)
        if split is not None:
            split.check(check, geometry, plan.batch)
    if words.is_cuda:
        from hisparse_svc.kernels import cuda  # noqa: PLC0415 - needs cuda-core, which a CPU has no use for

        cuda.resolve(geometry, words, state, plan, split=split)
    else:
        reference.resolve(geometry, words, state, plan)
        if split is not None:
            reference.split_picks(geometry, plan, split)


def gather(
    geometry: Geometry,
    host: HostRows,
    hot: Tensor,
    state: SeatState,
    plan: StepPlan,
    *,
    layers: range | None = None,
    blocks: int = 0,
    between: SplitPicks | None = None,
) -> None:
    """Copy the plan's misses from host memory; a token without a host page becomes zeros.

    Args:
        geometry: Shape of the hot cache.
        host: Rows of the group in host memory.
        hot: Its hot rows, `[layer, row, byte]`.
        state: Page maps of the seats.
        plan: A resolved plan.
        layers: Layers of the group to copy; all of them where none are named.
        blocks: Thread blocks to use, one of `GATHER_BLOCKS`; 0 chooses by the batch.
        between: The last thing launched on the current stream is `resolve` with these parts, beside which the gather's
            blocks may take their SMs, and the next may be `attend_beside_gather` with them.

    Raises:
        InvalidInput: With everything wrong about the tensors.
        DeviceUnavailable: The GPU cannot run it.
        CompileFailed: The kernel does not compile.
    """
    layers = range(host.layers) if layers is None and isinstance(host, HostRows) else layers
    numbers = {**each(range, layers=layers), **each(int, blocks=blocks)}
    demand_kinds(each(HostRows, host=host), each(torch.Tensor, hot=hot), numbers, step_kinds(geometry, state, plan))
    if between is not None:
        demand_kinds(each(SplitPicks, between=between))
    with Checks(hot.device) as check:
        if blocks and blocks not in GATHER_BLOCKS:
            check.refuse("blocks", blocks, f"must be one of {GATHER_BLOCKS}", "leave the choice to the library")
        check.state(geometry, state)
        check.plan(geometry, plan)
        check.rows("hot", hot, (host.layers, geometry.seats * geometry.padded_rows, host.row_bytes))
        check.host(host)
        check.layers(layers, host.layers)
        if between is not None:
            between.check(check, geometry, plan.batch)
    if hot.is_cuda:
        from hisparse_svc.kernels import cuda  # noqa: PLC0415

        blocks = blocks or gather_blocks(plan.batch * 128)
        cuda.gather(geometry, host, hot, state, plan, layers=layers, blocks=blocks, between=between)
    else:
        reference.gather(geometry, host, hot, state, plan, layers=layers)


def append(geometry: Geometry, hot: Tensor, state: SeatState, plan: StepPlan, rows: Tensor) -> None:
    """Write this step's rows of one layer to the newest pages.

    Args:
        geometry: Shape of the hot cache.
        hot: Hot rows of the layer, `[row, byte]`.
        state: Lengths, these rows included.
        plan: Seats of this step.
        rows: New rows, `[request, query row, byte]`; the last one is the request's last token.

    Raises:
        InvalidInput: With everything wrong about the tensors.
        DeviceUnavailable: The GPU cannot run it.
        CompileFailed: The kernel does not compile.
    """
    demand_kinds(each(torch.Tensor, hot=hot, rows=rows), step_kinds(geometry, state, plan))
    with Checks(hot.device) as check:
        check.state(geometry, state)
        check.plan(geometry, plan)
        if not check.dims("hot", hot, "row, byte", "pass the hot rows of one layer: HotCache.rows[group][layer]"):
            return
        check.rows("hot", hot, (geometry.seats * geometry.padded_rows, hot.shape[-1]))
        row_bytes, remedy = int(hot.shape[-1]), "pass the new tokens' rows, one for each query row"
        if check.dims("rows", rows, f"{plan.batch}, query row, {row_bytes}", remedy):
            check.rows("rows", rows, (plan.batch, rows.shape[1], row_bytes), remedy)
            _query_rows(check, rows.shape[1])
    if hot.is_cuda:
        from hisparse_svc.kernels import cuda  # noqa: PLC0415

        cuda.append(geometry, hot, state, plan, rows)
    else:
        reference.append(geometry, hot, state, plan, rows)


def backup(
    geometry: Geometry, host: HostRows, hot: Tensor, state: SeatState, plan: StepPlan, *, query_rows: int | None = None
) -> None:
    """Copy this step's rows of all layers of a group from the newest pages to host memory.

    Args:
        geometry: Shape of the hot cache.
        host: Rows of the group in host memory.
        hot: Its hot rows, `[layer, row, byte]`.
        state: Lengths and page maps.
        plan: Seats of this step.
        query_rows: New tokens of each request; the geometry's where not given.

    Raises:
        InvalidInput: With everything wrong about the tensors.
        DeviceUnavailable: The GPU cannot run it.
        CompileFailed: The kernel does not compile.
    """
    query_rows = geometry.query_rows if query_rows is None and isinstance(geometry, Geometry) else query_rows
    own = {**each(HostRows, host=host), **each(torch.Tensor, hot=hot), **each(int, query_rows=query_rows)}
    demand_kinds(own, step_kinds(geometry, state, plan))
    with Checks(hot.device) as check:
        check.state(geometry, state)
        check.plan(geometry, plan)
        check.rows("hot", hot, (host.layers, geometry.seats * geometry.padded_rows, host.row_bytes))
        check.host(host, written=True)
        _query_rows(check, query_rows)
    if hot.is_cuda:
        from hisparse_svc.kernels import cuda  # noqa: PLC0415

        cuda.backup(geometry, host, hot, state, plan, query_rows=query_rows)
    else:
        reference.backup(geometry, host, hot, state, plan, query_rows=query_rows)


def backup_pages(
    geometry: Geometry, host: HostRows, rows: Tensor, pages: Tensor, *, first_token: int = 0, first_layer: int = 0
) -> None:
    """Copy many consecutive tokens of one request to host memory.

    Args:
        geometry: Shape of the hot cache.
        host: Rows of the group in host memory.
        rows: Rows of consecutive tokens, `[layer, token, byte]`.
        pages: Host pages of the request, from its first token on.
        first_token: Token of the first row.
        first_layer: Layer of the group that the first of `rows` is of.

    Raises:
        InvalidInput: With everything wrong about the tensors.
        DeviceUnavailable: The GPU cannot run it.
        CompileFailed: The kernel does not compile.
    """
    tensors, numbers = each(torch.Tensor, rows=rows, pages=pages), each(int, first_token=first_token)
    demand_kinds(
        each(Geometry, geometry=geometry),
        each(HostRows, host=host),
        tensors,
        numbers,
        each(int, first_layer=first_layer),
    )
    tokens = rows.shape[1] if rows.dim() == 3 else 0
    with Checks(rows.device) as check:
        if not check.dims(
            "rows", rows, f"layer, token, {host.row_bytes}", "pass rows of consecutive tokens, as stored"
        ):
            return
        check.rows("rows", rows, (rows.shape[0], tokens, host.row_bytes), "pass rows as the group stores them")
        check.tensor("pages", pages, (pages.numel(),), torch.int32, "pass the request's pages, in token order")
        check.host(host, written=True)
        check.layers(range(first_layer, first_layer + rows.shape[0]), host.layers)
        check_tokens(check, first_token, tokens, pages)
    if rows.is_cuda:
        from hisparse_svc.kernels import cuda  # noqa: PLC0415

        cuda.backup_pages(geometry, host, rows, pages, first_token=first_token, first_layer=first_layer)
    else:
        reference.backup_pages(host, rows, pages, first_token=first_token, first_layer=first_layer)


def _query_rows(check: Checks, query_rows: int) -> None:
    check.between("query_rows", query_rows, MAX_QUERY_ROWS, "speculate fewer tokens")
