"""One group's swap-in: resolve on the caller's stream, gather beside it.

::

    caller's stream   ── resolve ──┬────── attention over hits ──────┬── attention over misses ──►
    side stream                    └── gather, few SMs ──────────────┘
                                 event                             event: `SwapIn.wait`

Both events become edges where the caller's stream is being captured, so a graph replays the same overlap; what is to be
waited for from outside of the graph is a `signal`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kernels import gather, gather_blocks, resolve

if TYPE_CHECKING:
    from torch import Tensor

    from hisparse_svc.engine.hot_cache import HotCache
    from hisparse_svc.kernels import HostRows

__all__ = ["SwapIn", "swap_in"]

_EXPECTED_MISS_SHARE = 16


@dataclass(frozen=True)
class SwapIn:
    """A swap-in under way.

    Attributes:
        rows: Hot row of every pick, `[batch, query row, top_k]`; -1 where there was no pick. Right as soon as the
            caller's stream reaches this point, though missing rows are still on their way.
        counts: Missing rows of each request.
        ready: What `wait` waits for, per part that was fetched: the first layers, then the rest. Empty on the CPU.
    """

    rows: Tensor
    counts: Tensor
    ready: tuple[Any, ...] = ()

    def wait(self, part: int = -1) -> None:
        """Make the current stream wait for the missing rows; the last part's event stands for all."""
        if self.ready:
            torch.cuda.current_stream(self.rows.device).wait_event(self.ready[part])


def swap_in(
    cache: HotCache,
    group: int,
    host: HostRows,
    batch: int = 0,
    *,
    side_stream: Any = None,
    expected_misses: int = 0,
    first_layers: int = 0,
    signal: Any = None,
) -> SwapIn:
    """Make the picked rows of one group hot.

    `cache.plan.seats` and `cache.plan.picks` say of which requests and which tokens.

    Args:
        cache: The hot cache.
        group: Group of layers.
        host: Its rows in host memory.
        batch: Requests of the batch; 0: as many as the cache has seats.
        side_stream: Stream to gather on; the current one where not given.
        expected_misses: Missing rows to expect over the batch, for the choice of SMs; 0: a sixteenth of the picks.
        first_layers: Fetch so many layers of the group first, the rest behind them; 0: all at once.
        signal: An event to record behind the last row. Made with `external=True` it survives capture: every replay of
            the graph records it, and streams outside the graph may wait for it.

    Returns:
        Where the rows are, and what to wait for.

    Raises:
        InvalidInput: Anything wrong with the arguments.
        DeviceUnavailable: The GPU cannot run the kernels.
        CompileFailed: A kernel does not compile.
    """
    _check(cache, group, host, batch, first_layers=first_layers, expected_misses=expected_misses)
    plan = cache.plan.first(batch) if batch else cache.plan
    resolve(cache.geometry, cache.words[group], cache.state, plan)
    layers = range(host.layers)
    parts = [layers[:first_layers], layers[first_layers:]] if 0 < first_layers < len(layers) else [layers]
    blocks = gather_blocks(expected_misses or plan.batch * cache.geometry.picks // _EXPECTED_MISS_SHARE)

    def fetch(part: range) -> None:
        gather(cache.geometry, host, cache.rows[group], cache.state, plan, layers=part, blocks=blocks)

    if cache.device.type != "cuda":
        for part in parts:
            fetch(part)
        return SwapIn(plan.rows, plan.counts)
    here = torch.cuda.current_stream(cache.device)
    stream = here if side_stream is None else side_stream
    event: Any = torch.cuda.Event  # untyped in torch
    resolved = event()
    resolved.record(here)
    stream.wait_event(resolved)
    ready = []
    with torch.cuda.stream(stream):
        for part in parts:
            fetch(part)
            if signal is not None and part is parts[-1]:
                signal.record(stream)  # in front of the edge back: a capture must join it
            fetched = event()
            fetched.record(stream)
            ready.append(fetched)
    return SwapIn(plan.rows, plan.counts, tuple(ready))


def _check(cache: HotCache, group: int, host: HostRows, batch: int, *, first_layers: int, expected_misses: int) -> None:
    problems = []
    if not 0 <= group < len(cache.layer_groups):
        rule = f"must be 0 to {len(cache.layer_groups) - 1}"
        problems.append(Problem("group", str(group), rule, "name a group of this cache"))
    elif host.layers != cache.layer_groups[group]:
        rule = f"must be {cache.layer_groups[group]}, the layers of group {group}"
        problems.append(Problem("host.layers", str(host.layers), rule, "pass the rows of this group"))
    if not 0 <= batch <= cache.geometry.seats:
        rule = f"must be 0 to {cache.geometry.seats}"
        problems.append(Problem("batch", str(batch), rule, "a cache has as many requests as seats"))
    if not 0 <= first_layers <= host.layers:
        rule = f"must be 0 to {host.layers}"
        problems.append(Problem("first_layers", str(first_layers), rule, "name layers of the group"))
    if expected_misses < 0:
        rule = "must not be negative"
        problems.append(Problem("expected_misses", str(expected_misses), rule, "use 0 where it is not known"))
    if problems:
        raise InvalidInput(problems)
