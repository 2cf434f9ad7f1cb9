"""One rank of `ranks.py`, in a process of its own: attaches, page-locks the pool, and measures when all ranks do.

::

    attach ─ together ─ register ─ together ─ [ set up ─ together ─ replay, replay … ]* ─ results ─ wait for the end

What is timed is replayed over and over without a pause, so that the ranks are at it all at once; the first and the last
fifth of the replays are left out.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import statistics
import time
import traceback
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from hisparse_svc.bench.gpu import captured
from hisparse_svc.bench.scene import Scene, number_hosts
from hisparse_svc.engine import Geometry, HostCopy, HostPool
from hisparse_svc.kernels import backup_pages, gather_blocks
from whole_step import HIDDEN, SCALE, WEIGHT_ROWS, HostBacked, Inputs, Setting, streams_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Barrier

    from hisparse_svc.engine import LayerStep
    from hisparse_svc.kernels import HostRows

__all__ = ["StepWanted", "SwapInWanted", "node_of", "run"]

Row = dict[str, Any]
TIMEOUT_S = 240
PREFILL_PAGES = 256
VARIANTS = ("copies skipped", "none", "prefetch", "hits-first")


@dataclass(frozen=True)
class SwapInWanted:
    """Swap-ins to measure: requests, their tokens, and missing rows of each."""

    requests: int
    context: int
    hot_rows: int
    top_k: int
    misses: tuple[int, ...]
    replays: int


@dataclass(frozen=True)
class StepWanted:
    """Whole steps to measure."""

    requests: int
    context: int
    hot_rows: int
    heads: int
    setting: Setting = field(default_factory=Setting)
    stand_in: bool = True


def node_of(device: int) -> int:
    """Give the memory node that a GPU is attached to; -1 where the machine does not say."""
    found: Any = torch.cuda.get_device_properties(device)
    address = f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"
    with contextlib.suppress(OSError):
        return int(Path(f"/sys/bus/pci/devices/{address}/numa_node").read_text(encoding="ascii"))
    return -1


@dataclass
class Pace:
    """Median microseconds of work that all ranks do at once, over and over."""

    device: str
    replays: int
    together: Callable[[], object]

    def __call__(self, work: Callable[[], None], parts: int, reset: Callable[[], None] = lambda: None) -> Row:
        """Time `work`, which does `parts` equal things one after another; the result is of one."""
        took, window = self._on_cpu(work, reset) if self.device == "cpu" else self._on_gpu(work, reset)
        edge = len(took) // 5
        middle = sorted(took[edge : len(took) - edge])
        spread = (middle[-1] - middle[0]) / parts
        return {"us": round(statistics.median(middle) / parts, 2), "spread_us": round(spread, 2), "window": window}

    def _on_gpu(self, work: Callable[[], None], reset: Callable[[], None]) -> tuple[list[float], list[float]]:
        graph = captured(work, reset)
        event: Any = torch.cuda.Event  # untyped in torch
        events = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(self.replays)]
        torch.cuda.synchronize()
        self.together()
        began = time.monotonic()
        for start, end in events:
            reset()
            start.record()
            graph.replay()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e3 for start, end in events], [began, time.monotonic()]

    def _on_cpu(self, work: Callable[[], None], reset: Callable[[], None]) -> tuple[list[float], list[float]]:
        self.together()
        began, took = time.monotonic(), []
        for _ in range(self.replays):
            reset()
            start = time.perf_counter()
            work()
            took.append((time.perf_counter() - start) * 1e6)
        return took, [began, time.monotonic()]


@dataclass
class Beside:
    """What the writer copies to the host meanwhile, on a stream of its own."""

    scene: Scene
    prefill: bool
    news: list[torch.Tensor] = field(init=False)
    pages: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        device = self.scene.cache.device
        count = min(PREFILL_PAGES, self.scene.hosts[0].pages)
        self.pages = torch.arange(count, dtype=torch.int32, device=device)
        # What is there already, so that what others read stays what it is.
        self.news = [
            host.view[:count].permute(2, 0, 1, 3).flatten(1, 2).to(device, copy=True).contiguous()
            for host in self.scene.hosts
        ]

    def with_swap_in(self, swap_in: Callable[[], None]) -> Callable[[], None]:
        """Give both at once."""
        stream_of: Any = torch.cuda.Stream  # untyped in torch
        side = stream_of() if self.scene.cache.device.type == "cuda" else None

        def work() -> None:
            if side is None:
                self._copy()
                swap_in()
                return
            here = torch.cuda.current_stream()
            side.wait_stream(here)
            with torch.cuda.stream(side):
                self._copy()
            swap_in()
            here.wait_stream(side)

        return work

    def _copy(self) -> None:
        for group, host in enumerate(self.scene.hosts):
            if self.prefill:
                backup_pages(self.scene.geometry, host, self.news[group], self.pages)
            else:
                self.scene.backup(group)


@contextlib.contextmanager
def attached(target: str, rank: int, device: str, together: Callable[[], object]) -> Iterator[tuple[HostPool, Row]]:
    """Attach and page-lock, at the same time as the other ranks, and say how long both took."""
    found: Row = {"rank": rank}
    if device != "cpu":
        torch.cuda.set_device(rank)
        torch.zeros(1, device="cuda")  # the context is not part of either time
        found["gpu_node"] = node_of(rank)
    together()
    start = time.perf_counter()
    with HostPool.attach(target, role="reader" if rank else "writer", rank=rank) as pool:
        found["attach_s"] = round(time.perf_counter() - start, 4)
        if device != "cpu":
            together()
            start = time.perf_counter()
            pool.register(device=rank)
            found["register_s"] = round(time.perf_counter() - start, 4)
        yield pool, found


def swap_ins(pool: HostPool, rank: int, wanted: SwapInWanted, pace: Pace) -> list[Row]:
    """Measure them: the same misses on all ranks, and different ones; alone, and beside the writer's copies."""
    hosts = [pool.rows(layers[0]) for layers in pool.groups()]
    if rank == 0:
        number_hosts(hosts)
    pace.together()
    geometry = Geometry(wanted.requests, wanted.hot_rows, wanted.top_k, context_tokens=wanted.context)
    torch.manual_seed(0)
    scene = Scene(geometry, hosts, pace.device)
    besides = {"": None, "step": None, "prefill": None}
    if rank == 0:
        besides |= {"step": Beside(scene, prefill=False), "prefill": Beside(scene, prefill=True)}
    rows = []
    for misses in wanted.misses:
        for shared in (True, False):
            torch.manual_seed(1 if shared else 2 + rank)
            scene.set(misses)
            blocks = gather_blocks(wanted.requests * misses)
            swap_in = scene.each(scene.resolve, partial(scene.gather, blocks=blocks))
            size = wanted.requests * misses * scene.row_bytes
            row: Row = {"misses": misses, "shared": shared, "bytes": size}
            for name, beside in besides.items():
                work = beside.with_swap_in(swap_in) if beside else swap_in
                key = f"swap_in_beside_{name}" if name else "swap_in"
                row[key] = pace(work, scene.groups, scene.reset)
                scene.check()
                if not name:
                    row["digest"] = scene.digest()
            row["memcpy"] = pace(copying(hosts, size, 0 if shared else rank, pace.device), scene.groups)
            rows.append(row)
    return rows


def copying(hosts: list[HostRows], size: int, place: int, device: str) -> Callable[[], None]:
    """Plain copies of as many bytes of each group, one piece each: the `place`th."""
    target = torch.empty(size, dtype=torch.uint8, device=device)
    whole = [torch.as_strided(host.view, (host.page_pitch * host.pages,), (1,)) for host in hosts]
    first = place * size if (place + 1) * size <= len(whole[0]) else 0

    def work() -> None:
        for part in whole:
            target.copy_(part[first : first + size], non_blocking=True)

    return work


def whole_steps(pool: HostPool, wanted: StepWanted, pace: Pace) -> Row:
    """Measure whole steps, the same requests and picks on every rank, as ranks of tensor parallelism have them."""
    host = HostCopy.of_pool(pool)
    setting = replace(wanted.setting, groups=tuple(rows.layers for rows in host.rows))
    torch.manual_seed(0)
    locality, steps = streams_of(wanted.context, wanted.requests, setting)
    weights = torch.randn((WEIGHT_ROWS, HIDDEN), device=pace.device).bfloat16() if wanted.stand_in else None
    inputs = Inputs.make(wanted.requests, wanted.heads, steps, weights, setting.index_heads)
    backed = HostBacked(host, wanted.context, wanted.requests, wanted.hot_rows, setting)
    row: Row = {"miss_share": backed.miss_share(inputs, locality)}
    for variant in VARIANTS:
        row[variant] = backed.measure(inputs, locality, variant, together=pace.together)
    row["digest"] = attended(backed, inputs)
    return row


def attended(backed: HostBacked, inputs: Inputs) -> str:
    """What one more step gives, in every layer: the same on every rank."""
    found = hashlib.sha256()

    def body(step: LayerStep) -> None:
        for layer in range(backed.shape.layers):
            group, place = backed.shape.place(layer)
            index = inputs.picks[group] if place == 0 else None
            out = step.attend(layer, inputs.q, inputs.row, scale=SCALE, index=index)
            found.update(out.view(torch.uint8).cpu().numpy().tobytes())

    with backed.session.step(backed.requests) as step:
        body(step)
    return found.hexdigest()


def run(
    pipe: Connection, barrier: Barrier, target: str, rank: int, *, device: str, wanted: SwapInWanted | StepWanted
) -> None:
    """Be a rank: measure what is wanted, send it, and stay attached until told to go."""
    faulthandler.enable()
    torch.set_num_threads(1 if device == "cpu" else 4)
    pace = Pace(device, wanted.replays if isinstance(wanted, SwapInWanted) else 1, lambda: barrier.wait(TIMEOUT_S))
    try:
        with attached(target, rank, device, pace.together) as (pool, found):
            if isinstance(wanted, SwapInWanted):
                found["rows"] = swap_ins(pool, rank, wanted, pace)
            else:
                found["step"] = whole_steps(pool, wanted, pace)
            pipe.send(found)
            pipe.recv()
    except BaseException:
        barrier.abort()  # the others wait for this rank
        traceback.print_exc()
        raise
