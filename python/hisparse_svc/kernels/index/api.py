"""The public functions of the indexer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hisparse_svc.kernels import reference
from hisparse_svc.kernels.checks import Checks, check_tokens, step_kinds
from hisparse_svc.kernels.geometry import MAX_QUERY_ROWS
from hisparse_svc.kernels.index.backends import choose
from hisparse_svc.kernels.index.call import IndexCall, check_logits, check_new_keys, check_page_map
from hisparse_svc.kernels.index.keys import INDEX_F32, INDEX_WIDTH, IndexKeys
from hisparse_svc.kernels.kinds import demand_kinds, each
from hisparse_svc.kernels.tensors import SeatState

if TYPE_CHECKING:
    from torch import Tensor

    from hisparse_svc.kernels.geometry import Geometry
    from hisparse_svc.kernels.tensors import StepPlan

__all__ = ["append_index_keys", "index_logits", "index_top_k", "indexer", "write_index_keys"]


def indexer(
    geometry: Geometry,
    keys: IndexKeys,
    state: SeatState,
    plan: StepPlan,
    q: Tensor,
    *,
    weights: Tensor,
    logits: Tensor,
    page_map: Tensor | None = None,
    backend: str = "auto",
) -> None:
    """Score every token of each request and write the best `top_k` to `plan.picks`, as `resolve` takes them.

    `index_logits`, then `index_top_k`: see there. Nothing is allocated and nothing waits.

    Args:
        geometry: Shape of the hot cache.
        keys: Index keys of the layer, this step's among them.
        state: Lengths, this step's rows included, and page maps.
        plan: Seats of this step.
        q: Queries, `e4m3 [batch, query row, head, 128]`.
        weights: What each head counts, `f32 [batch, query row, head]`, the scale of its query multiplied in.
        logits: Where scores go, `f32 [batch, query row, tokens]`; `index_logits_shape` gives a shape.
        page_map: Pages of the keys, `i32 [seat, page of the request]`; the state's, as the host pool and the indexer
            cache share page numbers, where not given.
        backend: `auto`, or a name in `index.backends`, for the logits.

    Raises:
        InvalidInput: With everything wrong about the tensors, or that the backend cannot do this.
        DeviceUnavailable: The machine lacks what the backend needs.
        CompileFailed: A kernel does not compile.

    Example:
        >>> import torch
        >>> from hisparse_svc.kernels import *
        >>> geometry = Geometry(seats=1, hot_rows=64, top_k=2, context_tokens=64)
        >>> state, plan = SeatState.allocate(geometry, "cpu"), StepPlan.allocate(geometry, "cpu")
        >>> keys = IndexKeys.allocate(1, "cpu")
        >>> write_index_keys(keys, torch.eye(128)[:3], pages=torch.tensor([0], dtype=torch.int32))
        >>> state.page_map[0, 0], state.lengths[0], plan.seats[0] = 0, 3, 0
        >>> q, scales = quantise(torch.eye(128)[2].expand(1, 1, 8, 128))  # eight heads, all like token 2
        >>> logits = torch.empty(index_logits_shape(geometry, 1))
        >>> indexer(geometry, keys, state, plan, q, weights=scales, logits=logits)
        >>> plan.picks.tolist()  # token 2, and the lower of the two that score 0
        [[[0, 2]]]
    """
    index_logits(geometry, keys, state, plan, q, weights=weights, logits=logits, page_map=page_map, backend=backend)
    index_top_k(geometry, state, plan, logits)


def index_logits(
    geometry: Geometry,
    keys: IndexKeys,
    state: SeatState,
    plan: StepPlan,
    q: Tensor,
    *,
    weights: Tensor,
    logits: Tensor,
    page_map: Tensor | None = None,
    backend: str = "auto",
) -> None:
    """Fill the logits: key scale × Σ over heads of weight × ReLU(q · key), summed in the same order for every token.

    Query row r of R sees the tokens before `length - (R - 1 - r)`. A token whose page is not mapped gets -inf. Logits
    behind the last token that a query row sees are left as they are, or overwritten: they mean nothing.

    Args:
        geometry: As `indexer`.
        keys: As `indexer`; fp32 keys take float32 queries.
        state: As `indexer`.
        plan: As `indexer`.
        q: As `indexer`.
        weights: As `indexer`.
        logits: As `indexer`.
        page_map: As `indexer`.
        backend: As `indexer`.

    Raises:
        InvalidInput: With everything wrong about the tensors, or that the backend cannot do this.
        DeviceUnavailable: The machine lacks what the backend needs.
        CompileFailed: The kernel does not compile.
    """
    demand_kinds(each(SeatState, state=state))
    pages = state.page_map if page_map is None else page_map
    call = IndexCall(geometry, keys, state, plan, pages, q, weights, logits)
    call.check()
    choose(backend, call).run(call)


def index_top_k(geometry: Geometry, state: SeatState, plan: StepPlan, logits: Tensor) -> None:
    """Write to `plan.picks` the tokens with the highest logits, ascending by token; -1 behind the last.

    Of equal scores the lower token is taken, so the same logits always give the same picks. Only tokens that the query
    row sees are looked at, and none that has -inf or NaN.

    Args:
        geometry: Shape of the hot cache.
        state: Lengths, this step's rows included.
        plan: Seats of this step.
        logits: What `index_logits` filled, or scores from elsewhere, `f32 [batch, query row, tokens]`.

    Raises:
        InvalidInput: With everything wrong about the tensors.
        DeviceUnavailable: The GPU cannot run it.
        CompileFailed: The kernel does not compile.
    """
    demand_kinds(each(torch.Tensor, logits=logits), step_kinds(geometry, state, plan))
    with Checks(logits.device) as check:
        check.state(geometry, state)
        check.plan(geometry, plan)
        check_logits(check, geometry, plan, logits)
    if logits.is_cuda:
        from hisparse_svc.kernels.cuda import index  # noqa: PLC0415 - needs cuda-core, which a CPU has no use for

        index.top_k(geometry, state, plan, logits)
    else:
        reference.index_top_k(geometry, state, plan, logits)


def append_index_keys(
    geometry: Geometry,
    keys: IndexKeys,
    state: SeatState,
    plan: StepPlan,
    values: Tensor,
    *,
    page_map: Tensor | None = None,
) -> None:
    """Quantise and store this step's keys of one layer; a token without a page is dropped.

    Args:
        geometry: Shape of the hot cache.
        keys: Index keys of the layer.
        state: Lengths, these tokens included, and page maps.
        plan: Seats of this step.
        values: New keys, bfloat16 or float32, `[batch, row, 128]`; the last one is of the request's last token.
        page_map: As in `indexer`.

    Raises:
        InvalidInput: With everything wrong about the tensors.
        DeviceUnavailable: The GPU cannot run it.
        CompileFailed: The kernel does not compile.
    """
    demand_kinds(each(torch.Tensor, values=values), each(IndexKeys, keys=keys), step_kinds(geometry, state, plan))
    pages = state.page_map if page_map is None else page_map
    demand_kinds(each(torch.Tensor, page_map=pages))
    rows = int(values.shape[1]) if values.dim() == 3 else 1
    with Checks(keys.pages.device) as check:
        check.state(geometry, state)
        check.plan(geometry, plan)
        check_page_map(check, geometry, pages)
        if check.dims("values", values, f"{plan.batch}, query row, {INDEX_WIDTH}", "pass the new tokens' keys"):
            check_new_keys(check, values, (plan.batch, rows, INDEX_WIDTH))
            check.between("query_rows", rows, MAX_QUERY_ROWS, "use write_index_keys")
    if keys.pages.is_cuda and keys.stored is not INDEX_F32:
        from hisparse_svc.kernels.cuda import index  # noqa: PLC0415

        index.append_keys(geometry, keys, state, plan, values, page_map=pages)
    else:
        reference.append_index_keys(geometry, keys, state, plan, values, page_map=pages)


def write_index_keys(keys: IndexKeys, values: Tensor, pages: Tensor, *, first_token: int = 0) -> None:
    """Quantise and store the keys of many consecutive tokens of one request; a token without a page is dropped.

    Args:
        keys: Index keys of the layer.
        values: Keys, bfloat16 or float32, `[token, 128]`.
        pages: Pages of the request, `i32 [page of the request]`, from its first token on.
        first_token: Token of the first key.

    Raises:
        InvalidInput: With everything wrong about the tensors.
        DeviceUnavailable: The GPU cannot run it.
        CompileFailed: The kernel does not compile.
    """
    tensors = each(torch.Tensor, values=values, pages=pages)
    demand_kinds(each(IndexKeys, keys=keys), tensors, each(int, first_token=first_token))
    tokens = int(values.shape[0]) if values.dim() == 2 else 0
    with Checks(keys.pages.device) as check:
        if not check.dims("values", values, f"token, {INDEX_WIDTH}", "pass keys of consecutive tokens"):
            return
        check_new_keys(check, values, (tokens, INDEX_WIDTH))
        check.tensor("pages", pages, (pages.numel(),), torch.int32, "pass the request's pages, in token order")
        check_tokens(check, first_token, tokens, pages)
    if keys.pages.is_cuda and keys.stored is not INDEX_F32:
        from hisparse_svc.kernels.cuda import index  # noqa: PLC0415

        index.write_keys(keys, values, pages, first_token=first_token)
    else:
        reference.write_index_keys(keys, values, pages, first_token=first_token)
