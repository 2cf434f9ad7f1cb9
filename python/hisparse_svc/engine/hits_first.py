"""Attention that starts with the rows that are there, while the missing ones are copied.

::

    caller's stream   ── resolve ─┬─ split ── attention over hits ──┬── attention over misses ── merge ──►
    side stream                   └── gather, a few SMs ────────────┘
                                      the grid of the first attention leaves those SMs free

Whether that is worth two launches more depends on the batch and the misses: capture both, and let `Variants` choose
between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hisparse_svc.kernels import gather_blocks, merge_lse, sparse_mla_decode, split_picks

if TYPE_CHECKING:
    from torch import Tensor

    from hisparse_svc.engine.hot_cache import HotCache
    from hisparse_svc.engine.swapping import SwapIn
    from hisparse_svc.kernels import SplitPicks, StepPlan

__all__ = ["attend_hits_first"]


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
    hits = sparse_mla_decode(
        q, hot, split.hits.rows, counts=split.hits.counts, scale=scale, max_sms=_left_sms(q, expected_misses)
    )
    swap.wait(part)
    misses = sparse_mla_decode(q, hot, split.misses.rows, counts=split.misses.counts, scale=scale)
    return merge_lse([hits, misses], sink=sink, out=out, lse=lse)


def _left_sms(q: Tensor, expected_misses: int) -> int:
    """SMs that the gather leaves; 0, all of them, on the CPU."""
    if not q.is_cuda:
        return 0
    there = int(torch.cuda.get_device_properties(q.device).multi_processor_count)
    return max(1, there - gather_blocks(expected_misses))
