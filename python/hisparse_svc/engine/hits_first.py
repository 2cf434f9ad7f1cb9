"""Attention that starts with the rows that are there, while the missing ones are copied.

::

    caller's stream   ── resolve ─┬─ gather, a few SMs ──────────────┐
                                  └─ attention: hits on other SMs … ─┴─ … misses ──►
    side stream                        gather of the group's later layers ───────────►

One attention kernel does both: it is launched so that it starts as soon as the gather runs (programmatic dependent
launch), and what of it loads rows waits for the end of the gather between the last hit and the first miss. The gather
has its SMs by then, so attention that fills all others cannot keep it from ending.

Whether that is worth its cost depends on the batch and the misses: capture both ways, and let `Variants` choose.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from hisparse_svc.engine.swapping import SwapIn, check_swap_in, swap_in
from hisparse_svc.kernels import SplitPicks
from hisparse_svc.kernels.decode.api import attend_call_beside_gather, least_blocks
from hisparse_svc.kernels.decode.call import make_call
from hisparse_svc.kernels.kinds import demand_kinds, each

if TYPE_CHECKING:
    from torch import Tensor

    from hisparse_svc.engine.hot_cache import HotCache
    from hisparse_svc.kernels import HostRows

__all__ = ["attend_hits_first"]


def attend_hits_first(
    cache: HotCache,
    group: int,
    host: HostRows,
    split: SplitPicks,
    q: Tensor,
    *,
    scale: float,
    sink: Tensor | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    side_stream: Any = None,
    expected_misses: int = 0,
    first_layers: int = 0,
) -> tuple[Tensor, Tensor, SwapIn]:
    """Swap a group's rows in and attend to those of its first layer: `swap_in`, then `sparse_mla_decode`.

    Args:
        cache: The hot cache; `cache.plan.seats` and `cache.plan.picks` say which requests and which tokens.
        group: Group of layers.
        host: Its rows in host memory.
        split: Where hits and misses go apart, for at least as many requests as there are queries.
        q: Queries of the first layer, there before the call.
        scale: What logits are multiplied by.
        sink: Attention sink, `f32 [head]`.
        out: Where to write the output.
        lse: Where to write the log of the sum of exponentials.
        side_stream: Stream to gather the later layers on; the current one where not given.
        expected_misses: Missing rows to expect over the batch, as in `swap_in`.
        first_layers: Fetch so many layers in front of attention, the rest beside it or behind; 0: all in front.

    Returns:
        Output and log of the sum of exponentials, as `sparse_mla_decode`, and the swap-in, whose later layers may still
        be under way.

    Raises:
        InvalidInput: With everything wrong about the arguments; nothing is swapped in then.
        DeviceUnavailable: The GPU cannot run a kernel.
        CompileFailed: A kernel does not compile.
    """
    demand_kinds(each(torch.Tensor, q=q), each(SplitPicks, split=split))
    batch = int(q.shape[0]) if q.dim() else 0
    check_swap_in(cache, group, host, batch, first_layers=first_layers, expected_misses=expected_misses)
    rows, plan = cache.rows[group][0], cache.plan.first(batch)
    call = make_call(q, rows, plan.rows, scale=scale, sink=sink, counts=None, out=out, lse=lse, max_sms=0)
    there = _sms(q)
    swap = swap_in(
        cache,
        group,
        host,
        batch,
        side_stream=side_stream,
        expected_misses=expected_misses,
        first_layers=first_layers,
        split=split,
        spare_sms=max(0, there - least_blocks(q, rows)),
    )
    left = max(1, there - swap.blocks) if there else 0
    attend_call_beside_gather(replace(call, max_sms=left), split.first(batch))
    return call.out, call.lse, swap


def _sms(q: Tensor) -> int:
    """SMs of the GPU that the queries are on; 0: they are on none."""
    return int(torch.cuda.get_device_properties(q.device).multi_processor_count) if q.is_cuda else 0
