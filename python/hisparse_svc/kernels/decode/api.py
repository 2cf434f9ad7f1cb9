"""The public functions of sparse MLA decode."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from hisparse_svc.kernels import reference
from hisparse_svc.kernels.checks import Checks
from hisparse_svc.kernels.decode.backends import choose
from hisparse_svc.kernels.decode.call import check_parts, make_call
from hisparse_svc.kernels.decode.rows import ROW_FORMATS
from hisparse_svc.kernels.kinds import demand_kinds, each
from hisparse_svc.kernels.split import SplitPicks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from hisparse_svc.kernels.decode.call import DecodeCall

__all__ = ["attend_beside_gather", "attend_call_beside_gather", "least_blocks", "merge_lse", "sparse_mla_decode"]

_SPLIT = "pass what resolve was given for these picks"


def sparse_mla_decode(
    q: Tensor,
    rows: Tensor,
    picks: Tensor,
    *,
    scale: float,
    sink: Tensor | None = None,
    counts: Tensor | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    max_sms: int = 0,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Attend from each query to the rows it picked; absorbed MLA, so a row is key and value at once.

    Nothing waits, and given `out` and `lse` nothing is allocated: a call may be captured in a CUDA graph. Rows that no
    pick names are not read. The result does not depend on what runs beside it, bit by bit. There is no backward:
    tensors that ask for gradients are refused, but for under `torch.no_grad()` or `torch.inference_mode()`.

    Args:
        q: Queries, latent part first, `bf16 [batch, query row, head, 576]`, 1 to 128 heads; the reference takes
            float32 and float64 too.
        rows: Stored rows of one layer, `u8 [row, row_bytes]`, as in `HotCache.rows[group][layer]`: 656 bytes (FP8,
            any fp32 scales from 0 on), 1152 (BF16) or 2304 (fp32). Rows may be a pitch apart.
        picks: Which rows, `i32 [batch, query row, top_k]`, as `resolve` gives them; a number that is no row (-1) is no
            pick, and a row picked twice counts twice.
        scale: What logits are multiplied by: 192 ** -0.5, times YaRN's factor, for DeepSeek and GLM.
        sink: A logit per head that takes attention and gives nothing, `f32 [head]`; -inf has no effect, +inf leaves 0.
        counts: How many leading picks count, `i32 [batch, query row]`; all of them where not given. Work beyond a
            count is skipped.
        out: Where to write, `[batch, query row, head, 512]` of q's type, in memory of its own; allocated where not
            given.
        lse: Where to write, `f32 [batch, query row, head]` (f64 for float64 queries); allocated where not given.
        max_sms: SMs to plan for, which leaves the others to a gather; 0: all of them. Work is split so that it runs at
            once on so many, where the queries themselves are not more.
        backend: `auto`, or a name in `decode.backends`.

    Returns:
        The attention's output, and the natural log of the sum of exponentials of the logits, without the sink. A query
        with no valid pick gives 0 and -inf.

    Raises:
        InvalidInput: With everything wrong about the tensors, or that the backend cannot do this.
        DeviceUnavailable: The machine lacks what the backend needs.
        CompileFailed: The kernel does not compile.

    Example:
        >>> import torch
        >>> from hisparse_svc.kernels import sparse_mla_decode
        >>> q = torch.zeros((1, 1, 8, 576), dtype=torch.bfloat16)
        >>> rows = torch.zeros((4, 1152), dtype=torch.uint8)
        >>> picks = torch.tensor([[[3, 0, -1]]], dtype=torch.int32)
        >>> out, lse = sparse_mla_decode(q, rows, picks, scale=192**-0.5)
        >>> tuple(out.shape), round(float(lse[0, 0, 0]), 4)  # two equal logits of 0: log 2
        ((1, 1, 8, 512), 0.6931)
    """
    call = make_call(q, rows, picks, scale=scale, sink=sink, counts=counts, out=out, lse=lse, max_sms=max_sms)
    choose(backend, call).run(call)
    return call.out, call.lse


def least_blocks(q: Tensor, rows: Tensor) -> int:
    """Give the blocks, each with its own SM, of attention that splits no query; 0 where it runs beside nothing.

    Args:
        q: Queries.
        rows: Hot rows.
    """
    if not q.is_cuda or torch.cuda.get_device_capability(q.device) != (9, 0) or rows.shape[-1] not in ROW_FORMATS:
        return 0
    from hisparse_svc.kernels.cuda.decode_shapes import choose as choose_shape  # noqa: PLC0415

    queries, heads = int(q.shape[0] * q.shape[1]), int(q.shape[2])
    shape, _ = choose_shape(ROW_FORMATS[rows.shape[-1]].name, heads, queries, queries * heads)
    return queries * shape.blocks(heads, 1)


def attend_beside_gather(
    q: Tensor,
    rows: Tensor,
    picks: Tensor,
    split: SplitPicks,
    *,
    scale: float,
    sink: Tensor | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    max_sms: int = 0,
) -> tuple[Tensor, Tensor]:
    """Attend to hits while the gather brings the misses, then to those: `sparse_mla_decode` over all of them.

    The last thing launched on the current stream must be the gather of the missing rows, with `between`, and everything
    else that is read must have been there before that gather began: on Hopper, attention starts beside it. Elsewhere it
    waits.

    Args:
        q: As in `sparse_mla_decode`, like all that is not named here.
        rows: Hot rows of the layer that is gathered.
        picks: Rows of all picks, as `resolve` gives them.
        split: The same picks, hits and misses apart.
        scale: What logits are multiplied by.
        sink: Attention sink.
        out: Where to write.
        lse: Where to write the log of the sum of exponentials.
        max_sms: SMs that the gather leaves; work is split so that it runs at once on so many.

    Returns:
        As `sparse_mla_decode`; the sum is taken in another order.

    Raises:
        InvalidInput: With everything wrong about the tensors.
        DeviceUnavailable: The machine lacks what the backend needs.
        CompileFailed: The kernel does not compile.
    """
    call = make_call(q, rows, picks, scale=scale, sink=sink, counts=None, out=out, lse=lse, max_sms=max_sms)
    attend_call_beside_gather(call, split)
    return call.out, call.lse


def attend_call_beside_gather(call: DecodeCall, split: SplitPicks) -> None:
    """As `attend_beside_gather`, of a call that was checked.

    Raises:
        InvalidInput: The parts do not fit the call's picks.
        DeviceUnavailable: The machine lacks what the backend needs.
        CompileFailed: The kernel does not compile.
    """
    demand_kinds(each(SplitPicks, split=split))
    with Checks(call.q.device) as check:
        for name, part in (("hits", split.hits), ("misses", split.misses)):
            check.tensor(f"{name}.rows", part.rows, tuple(call.picks.shape), torch.int32, _SPLIT)
            check.tensor(f"{name}.counts", part.counts, tuple(call.picks.shape[:2]), torch.int32, _SPLIT)
    backend = choose("auto", replace(call, max_sms=0))  # one that takes all SMs will do: it starts behind the gather
    if backend.beside_gather:
        call = replace(call, picks=split.hits.rows, counts=split.hits.counts, late=split.misses)
    elif not backend.capped:
        call = replace(call, max_sms=0)
    backend.run(call)


def merge_lse(
    parts: Sequence[tuple[Tensor, Tensor]],
    *,
    sink: Tensor | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Merge attention over disjoint sets of rows into attention over all of them.

    The parts are summed in the order given. Each must have been made without a sink.

    Args:
        parts: What `sparse_mla_decode` returned for each set, 1 to 4 of them.
        sink: As there, applied to the whole.
        out: Where to write; a part's own tensor will do. Allocated where not given.
        lse: The same for the log-sum-exp.

    Returns:
        As `sparse_mla_decode` over all rows.

    Raises:
        InvalidInput: With everything wrong about the tensors.
        DeviceUnavailable: The GPU cannot run it.
        CompileFailed: The kernel does not compile.
    """
    parts = list(parts) if isinstance(parts, Iterable) else [parts]
    out, lse = check_parts(parts, sink, out, lse)
    if out.is_cuda and out.dtype is torch.bfloat16:
        from hisparse_svc.kernels.cuda import decode  # noqa: PLC0415 - needs cuda-core, which a CPU has no use for

        decode.merge_lse(parts, sink, out, lse)
    else:
        for given, merged in zip((out, lse), reference.merge_lse(parts, sink), strict=True):
            given.copy_(merged)
    return out, lse
