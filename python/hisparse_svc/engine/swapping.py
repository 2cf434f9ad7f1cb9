"""One group's swap-in: resolve on the caller's stream, gather beside it.

::

    caller's stream   ── resolve ──┬────── other work ──────┬── attention ──►
    side stream                    └── gather, few SMs ─────┘
                                 event                    event: `SwapIn.wait`

With `split` the first part is gathered on the caller's stream, for attention that starts beside it (`hits_first.py`).
Both events become edges where the caller's stream is being captured, so a graph replays the same overlap; what is to be
waited for from outside of the graph is a `signal`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from hisparse_svc.engine.hot_cache import HotCache
from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kernels import HostRows, SplitPicks, gather, gather_blocks, resolve
from hisparse_svc.kernels.checks import Checks
from hisparse_svc.kernels.kinds import demand_kinds, each

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SwapIn", "check_swap_in", "swap_in"]

_EXPECTED_MISS_SHARE = 16


@dataclass(frozen=True)
class SwapIn:
    """A swap-in under way.

    Attributes:
        rows: Hot row of every pick, `[batch, query row, top_k]`; -1 where there was no pick. Right as soon as the
            caller's stream reaches this point, though missing rows are still on their way.
        counts: Missing rows of each request.
        ready: What `wait` waits for, per part that was fetched: the first layers, then the rest. Empty on the CPU.
        blocks: Blocks of the gather; each has an SM.
    """

    rows: Tensor
    counts: Tensor
    ready: tuple[Any, ...] = ()
    blocks: int = 0

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
    split: SplitPicks | None = None,
    spare_sms: int = 0,
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
        split: Where hits and misses go apart, for at least as many requests. The first layers are then gathered on the
            current stream, and only the others on the side stream.
        spare_sms: SMs that attention beside the gather leaves, as in `gather_blocks`.

    Returns:
        Where the rows are, and what to wait for.

    Raises:
        InvalidInput: Anything wrong with the arguments.
        DeviceUnavailable: The GPU cannot run the kernels.
        CompileFailed: A kernel does not compile.
    """
    check_swap_in(
        cache, group, host, batch, first_layers=first_layers, expected_misses=expected_misses, spare_sms=spare_sms
    )
    if split is not None:
        demand_kinds(each(SplitPicks, split=split))
    plan = cache.plan.first(batch) if batch else cache.plan
    parted = split.first(plan.batch) if split is not None else None
    resolve(cache.geometry, cache.words[group], cache.state, plan, split=parted)
    layers = range(host.layers)
    parts = [layers[:first_layers], layers[first_layers:]] if 0 < first_layers < len(layers) else [layers]
    expected = expected_misses or plan.batch * cache.geometry.picks // _EXPECTED_MISS_SHARE
    blocks = gather_blocks(expected, spare_sms=spare_sms)

    def fetch(part: range, *, between: SplitPicks | None = None) -> None:
        gather(cache.geometry, host, cache.rows[group], cache.state, plan, layers=part, blocks=blocks, between=between)

    if cache.device.type != "cuda":
        for part in parts:
            fetch(part)
        return SwapIn(plan.rows, plan.counts)
    event: Any = torch.cuda.Event  # untyped in torch
    here: Any = torch.cuda.current_stream(cache.device)
    aside = here if side_stream is None else side_stream
    ready: list[Any] = []
    for part in parts:
        in_front = split is not None and part is parts[0]
        stream = here if in_front else aside
        if stream is not here:
            if not ready:
                behind = event()
                behind.record(here)
            stream.wait_event(behind)
        with torch.cuda.stream(stream):
            fetch(part, between=parted if in_front else None)
            if signal is not None and part is parts[-1]:
                signal.record(stream)  # in front of the edge back: a capture must join it
            behind = event()
            behind.record(stream)
        ready.append(behind)
    return SwapIn(plan.rows, plan.counts, tuple(ready), blocks)


def check_swap_in(
    cache: HotCache,
    group: int,
    host: HostRows,
    batch: int,
    *,
    first_layers: int,
    expected_misses: int,
    spare_sms: int = 0,
) -> None:
    """Check what `swap_in` is given: `resolve` must not call a row hot that no gather brings.

    Raises:
        InvalidInput: With everything wrong about it.
    """
    numbers = {"group": group, "batch": batch, "first_layers": first_layers, "expected_misses": expected_misses}
    numbers["spare_sms"] = spare_sms
    demand_kinds(each(HotCache, cache=cache), each(HostRows, host=host), each(int, **numbers))
    problems = cache.host_problems(group, host)
    if not 0 <= batch <= cache.geometry.seats:
        rule = f"must be 0 to {cache.geometry.seats}"
        problems.append(Problem("batch", str(batch), rule, "a cache has as many requests as seats"))
    if not 0 <= first_layers <= host.layers:
        rule = f"must be 0 to {host.layers}"
        problems.append(Problem("first_layers", str(first_layers), rule, "name layers of the group"))
    for name in ("expected_misses", "spare_sms"):
        if numbers[name] < 0:
            problems.append(Problem(name, str(numbers[name]), "must not be negative", "use 0 where it is not known"))
    if problems:
        raise InvalidInput(problems)
    with Checks(cache.device) as check:
        check.host(host)
