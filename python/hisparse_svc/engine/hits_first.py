"""Attention that starts with the rows that are there, while the missing ones are copied.

::

    caller's stream   ── resolve ─┬─ split ── attention over hits ───────────────┬─ merge ──►
                                  │    └──────────┐                              │
    side stream                   └── gather ─────┴── attention over misses ─────┘
                                      a few SMs: the first attention leaves them free

Whether that is worth the launches depends on the batch and the misses: capture both, and let `Variants` choose
between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from hisparse_svc.kernels import gather_blocks, merge_lse, sparse_mla_decode, split_picks
from hisparse_svc.kernels.decode.call import lse_type
from hisparse_svc.kernels.decode.rows import LATENT_WIDTH

if TYPE_CHECKING:
    from torch import Tensor

    from hisparse_svc.engine.hot_cache import HotCache
    from hisparse_svc.engine.swapping import SwapIn
    from hisparse_svc.kernels import SplitPicks, StepPlan
    from hisparse_svc.kernels.split import PickPart

__all__ = ["attend_hits_first"]

_FEW_MISSES = 64
"""Misses of a request whose gather is shorter than attention."""

_SHARE_OF_FEW = 4
"""Attention to few misses takes one in so many SMs."""


def attend_hits_first(
    cache: HotCache,
    swap: SwapIn,
    split: SplitPicks,
    q: Tensor,
    hot: Tensor,
    *,
    scale: float,
    sink: Tensor | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    part: int = 0,
    side_stream: Any = None,
    expected_misses: int = 0,
    plan: StepPlan | None = None,
) -> tuple[Tensor, Tensor]:
    """Attend to the picks of a swap-in that is under way; as `sparse_mla_decode` over all of them once it is done.

    Args:
        cache: The hot cache, its plan resolved by `swap_in`.
        swap: What that returned.
        split: Where to part the picks, for at least as many requests as the batch.
        q: Queries.
        hot: Hot rows of the layer.
        scale: What logits are multiplied by.
        sink: Attention sink, `f32 [head]`.
        out: Where to write the output.
        lse: Where to write the log of the sum of exponentials.
        part: Part of the swap-in that brings this layer's rows.
        side_stream: Stream that the swap-in gathers on, to attend to the misses on as soon as they are there; the
            current one, after the hits, where not given.
        expected_misses: As `swap_in` was told, so that as many SMs are left free as the gather takes.
        plan: The plan that was resolved, where it is not the cache's.

    Returns:
        Output and log of the sum of exponentials, as `sparse_mla_decode`.

    Raises:
        InvalidInput: With everything wrong about the tensors.
        DeviceUnavailable: The GPU cannot run a kernel.
        CompileFailed: A kernel does not compile.
    """
    batch = int(swap.rows.shape[0])
    split = split.first(batch)
    split_picks(cache.geometry, (plan or cache.plan).first(batch), split)

    # Allocated on the caller's stream, whichever stream fills them: that is where they are freed.
    results = [_result(q), _result(q)]

    def attend(rows: PickPart, max_sms: int, result: tuple[Tensor, Tensor]) -> None:
        out, lse = result
        sparse_mla_decode(q, hot, rows.rows, counts=rows.counts, scale=scale, out=out, lse=lse, max_sms=max_sms)

    left = _left_sms(q, expected_misses)
    if side_stream is None or not q.is_cuda:
        attend(split.hits, left, results[0])
        swap.wait(part)
        attend(split.misses, 0, results[1])
        return merge_lse(results, sink=sink, out=out, lse=lse)
    event: Any = torch.cuda.Event  # untyped in torch
    parted, attended = event(), event()
    parted.record(torch.cuda.current_stream(q.device))
    attend(split.hits, left, results[0])
    side_stream.wait_event(parted)
    with torch.cuda.stream(side_stream):
        swap.wait(part)
        # With few misses the gather is over while hits are attended to, and only what those leave is free.
        few = expected_misses <= _FEW_MISSES * batch
        attend(split.misses, left // _SHARE_OF_FEW if few else 0, results[1])
        attended.record(side_stream)
    torch.cuda.current_stream(q.device).wait_event(attended)
    return merge_lse(results, sink=sink, out=out, lse=lse)


def _result(q: Tensor) -> tuple[Tensor, Tensor]:
    """Where attention to one part goes."""
    return q.new_empty((*q.shape[:-1], LATENT_WIDTH)), torch.empty(q.shape[:-1], dtype=lse_type(q), device=q.device)


def _left_sms(q: Tensor, expected_misses: int) -> int:
    """SMs that the gather leaves; 0, all of them, on the CPU."""
    if not q.is_cuda:
        return 0
    there = int(torch.cuda.get_device_properties(q.device).multi_processor_count)
    return max(1, there - gather_blocks(expected_misses))
