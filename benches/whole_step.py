"""The whole decode step of a GLM-5.2-shaped model on one GPU: tokens a second with KV in host memory, and all resident.

On a machine with CUDA and 110 GiB of memory: `python benches/whole_step.py --out benches/results/whole_step.json`.

78 layers, 21 of them with an indexer, FP8 rows, 20 GiB of GPU memory for KV, 90 GiB of host pool. A layer is indexer
where it has one, resolve, gather, attention and backup, and a stand-in for the rest of it: a matmul over 0.7 GB of
weights, which is what the other weights of such a model cost. Picks come from `hisparse_svc.topk.Locality`, whose least
recently used misses are 13 % at 4,096 hot rows and 7 % at 8,192; the indexer runs all the same, and its picks are
thrown away.
Pages of a request lie in one extent, which is what the allocator gives while at most 90 % of the pool is taken.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gpu import document, keep, note
from hisparse_svc.bench.gpu import HostRegion
from hisparse_svc.engine import (
    MLA_FP8,
    DecodeSession,
    DecodeShape,
    Geometry,
    HostCopy,
    HostRows,
    IndexInputs,
    Overlap,
    swapping,
)
from hisparse_svc.kernels import (
    INDEX_FP8,
    PAGE_ROWS,
    IndexKeys,
    SeatState,
    StepPlan,
    append_index_keys,
    index_logits_shape,
    indexer,
    quantise,
    sparse_mla_decode,
)
from hisparse_svc.kernels.words import pack
from hisparse_svc.topk import PUBLISHED_MISSES, Locality

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hisparse_svc.engine import LayerStep
    from torch import Tensor

DEVICE = "cuda"
GROUPS = (1, 1, *(4,) * 19)
LAYERS, TOP_K, INDEX_HEADS, SCALE = sum(GROUPS), 2048, 32, 192**-0.5
DEVICE_BYTES, HOST_ROWS = 20 << 30, (90 << 30) // (LAYERS * MLA_FP8.row_bytes)
STEPS, WARM_STEPS, STREAMS = 12, 3, 3
WEIGHT_ROWS, HIDDEN = 57_000, 6144
SPIN_CYCLES = 8_000_000
Row = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """What is decoded and how often: GLM-5.2 in shape, unless a program is only tried."""

    groups: tuple[int, ...] = GROUPS
    top_k: int = TOP_K
    index_heads: int = INDEX_HEADS
    misses: Mapping[int, float] | None = None
    steps: int = STEPS
    warm_steps: int = WARM_STEPS
    device: str = DEVICE


@dataclass
class Inputs:
    """What the layers of a step are given, at fixed addresses."""

    q: Tensor
    row: Tensor
    index: IndexInputs
    picks: Tensor
    """`[group, batch, 1, top_k]`"""
    steps: Tensor
    """`[step, group, batch, 1, top_k]`"""
    hidden: Tensor
    weights: Tensor | None

    @staticmethod
    def make(batch: int, heads: int, steps: Tensor, weights: Tensor | None, index_heads: int = INDEX_HEADS) -> Inputs:
        """Make random ones."""
        device = steps.device
        q = torch.randn((batch, 1, heads, 576), device=device).bfloat16()
        row = torch.randint(0, 100, (batch, 1, 656), dtype=torch.uint8, device=device)
        index = IndexInputs(
            torch.randn((batch, 1, index_heads, 128), device=device).bfloat16(),
            torch.rand((batch, 1, index_heads), device=device),
            torch.randn((batch, 1, 128), device=device).bfloat16(),
        )
        hidden = torch.randn((batch, HIDDEN), device=device).bfloat16()
        return Inputs(q, row, index, steps[0].clone(), steps, hidden, weights)

    def rest_of_layer(self) -> None:
        """Do the work of the other weights."""
        if self.weights is not None:
            torch.matmul(self.hidden, self.weights.T)


def streams_of(context: int, batch: int, setting: Setting = Setting(), seed: int = 0) -> tuple[Locality, Tensor]:
    """Picks of every step, group and request; groups of a request share `STREAMS` streams in turn."""
    streams, top_k = batch * STREAMS, setting.top_k
    # The newest page never misses.
    locality = Locality(context - PAGE_ROWS, streams, top_k=top_k, misses=setting.misses, seed=seed)
    every = range(setting.steps + setting.warm_steps)
    found = np.stack([np.stack([locality.step(stream) for stream in range(streams)]) for _ in every])
    steps = torch.from_numpy(found).view(-1, batch, STREAMS, 1, top_k).transpose(1, 2)
    return locality, steps[:, torch.arange(len(setting.groups)) % STREAMS].to(setting.device)


def timed(
    inputs: Inputs,
    replay: Callable[[], None],
    *,
    warm_steps: int = WARM_STEPS,
    together: Callable[[], object] = lambda: None,
) -> Row:
    """Milliseconds of a step, median over steps, each with its own picks; `together` waits for other ranks."""
    took = []
    for picks in inputs.steps:
        inputs.picks.copy_(picks)
        took.append(_took_ms(replay, together) if inputs.steps.is_cuda else _host_ms(replay, together))
    took = sorted(took[warm_steps:])
    return {"ms": round(statistics.median(took), 3), "spread_ms": round(took[-1] - took[0], 3)}


def _took_ms(replay: Callable[[], None], together: Callable[[], object]) -> float:
    event: Any = torch.cuda.Event
    sleep: Any = torch.cuda._sleep
    torch.cuda.synchronize()
    together()
    sleep(SPIN_CYCLES)  # hides the launch: an engine prepares its next step while this one runs
    start, end = event(enable_timing=True), event(enable_timing=True)
    start.record()
    replay()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def _host_ms(replay: Callable[[], None], together: Callable[[], object]) -> float:
    together()
    start = time.perf_counter()
    replay()
    return (time.perf_counter() - start) * 1e3


class HostBacked:
    """A session of `batch` requests of `context` tokens, each with `hot_rows` hot rows, and its captured steps."""

    def __init__(self, host: HostCopy, context: int, batch: int, hot_rows: int, setting: Setting = Setting()) -> None:
        pages = batch * (context // PAGE_ROWS)
        geometry = Geometry(seats=batch, hot_rows=hot_rows, top_k=setting.top_k, context_tokens=context)
        self.setting = setting
        self.shape = DecodeShape(geometry, setting.groups, MLA_FP8, pages)
        self.session = DecodeSession(self.shape, host, setting.device)
        held = context // PAGE_ROWS
        start = context - PAGE_ROWS
        self.requests = [
            self.session.join(pages=range(seat * held, (seat + 1) * held), length=start) for seat in range(batch)
        ]
        for keys_of in self.session.memory.keys:
            keys_of.pages.random_(0, 100)
        for rows_of in self.session.memory.cache.rows:
            rows_of.random_(0, 100)
        self.batch = batch

    def prime(self, locality: Locality) -> None:
        """Put every request where it was before the first step: the top of its stacks hot, in their order."""
        cache, geometry = self.session.memory.cache, self.shape.geometry
        slots = torch.arange(geometry.hot_rows, device=cache.device)
        for seat, request in enumerate(self.requests):
            request.length = geometry.context_tokens - PAGE_ROWS
            for stream in range(STREAMS):
                recent = locality.first[seat * STREAMS + stream][: geometry.hot_rows][::-1].copy()
                cache.words[stream::STREAMS, seat] = pack(geometry, slots, torch.from_numpy(recent).to(cache.device))
        cache.state.lengths.fill_(geometry.context_tokens - PAGE_ROWS)

    def body(self, inputs: Inputs) -> Callable[[LayerStep], None]:
        """Give the step over all layers, reading the inputs."""
        places = [self.shape.place(layer) for layer in range(self.shape.layers)]

        def run(step: LayerStep) -> None:
            for layer, (group, place) in enumerate(places):
                if place == 0:
                    step.score(layer, inputs.index)
                index = inputs.picks[group] if place == 0 else None
                step.attend(layer, inputs.q, inputs.row, scale=SCALE, index=index)
                inputs.rest_of_layer()

        return run

    def measure(
        self, inputs: Inputs, locality: Locality, variant: str, *, together: Callable[[], object] = lambda: None
    ) -> Row:
        """Time the steps of one variant, each from the same state."""
        gather = swapping.gather
        if variant == "copies skipped":
            swapping.gather = lambda *_, **__: None  # type: ignore[assignment]
        overlap = Overlap.PREFETCH if variant == "copies skipped" else Overlap(variant)
        try:
            captured = self.session.capture(self.body(inputs), self.batch, overlaps=[overlap])
        finally:
            swapping.gather = gather
        self.prime(locality)
        replay = lambda: captured.replay(self.requests)  # noqa: E731
        return timed(inputs, replay, warm_steps=self.setting.warm_steps, together=together)

    def miss_share(self, inputs: Inputs, locality: Locality) -> float:
        """Share of picks that miss, over the first steps from the primed state."""
        self.prime(locality)
        missed = torch.zeros((), dtype=torch.int64, device=self.setting.device)

        def run(step: LayerStep) -> None:
            for layer in range(self.shape.layers):
                group, place = self.shape.place(layer)
                step.attend(layer, inputs.q, inputs.row, scale=SCALE, index=inputs.picks[group] if place == 0 else None)
                if place == 0:
                    missed.add_(step.plan.counts.sum())

        for picks in inputs.steps[:3]:
            inputs.picks.copy_(picks)
            with self.session.step(self.requests) as step:
                run(step)
        return round(int(missed) / (3 * inputs.picks.numel()), 4)


def host_copy_of(region: HostRegion, keys: Tensor, pages: int) -> HostCopy:
    """Rows of all groups in a region, one behind the other.

    Index keys of all groups are backed up to one place: nothing reads them again, and memory is scarce.
    """
    at, rows = 0, []
    for layers in GROUPS:
        size = pages * PAGE_ROWS * layers * MLA_FP8.row_bytes
        rows.append(HostRows(region.bytes[at : at + size].view(pages, PAGE_ROWS, layers, MLA_FP8.row_bytes)))
        at += size
    return HostCopy(tuple(rows), (keys[:pages],) * len(GROUPS))


class Resident:
    """The same step with all rows and keys on the GPU: as many requests as its memory holds."""

    def __init__(self, context: int, batch: int) -> None:
        self.geometry = Geometry(seats=batch, hot_rows=TOP_K, top_k=TOP_K, context_tokens=context)
        held = context // PAGE_ROWS
        self.rows = torch.randint(0, 100, (LAYERS, batch * context, 656), dtype=torch.uint8, device=DEVICE)
        self.keys = [IndexKeys.allocate(batch * held, DEVICE, INDEX_FP8) for _ in GROUPS]
        for keys in self.keys:
            keys.pages.random_(0, 100)
        self.state = SeatState.allocate(self.geometry, DEVICE)
        self.state.page_map[:] = torch.arange(batch * held, device=DEVICE).view(batch, held)
        self.state.mapped_pages[:] = held
        self.state.lengths[:] = context - PAGE_ROWS
        self.plan = StepPlan.allocate(self.geometry, DEVICE)
        self.plan.seats[:] = torch.arange(batch)
        self.logits = torch.empty(index_logits_shape(self.geometry, batch), device=DEVICE)
        self.base = (torch.arange(batch, device=DEVICE, dtype=torch.int32) * context).view(batch, 1, 1)
        self.last = self.base.view(-1).long() + context - PAGE_ROWS

    def measure(self, inputs: Inputs) -> Row:
        """Time the steps."""

        def work() -> None:
            layer = 0
            for group, layers in enumerate(GROUPS):
                append_index_keys(self.geometry, self.keys[group], self.state, self.plan, inputs.index.key)
                q, scales = quantise(inputs.index.q)
                weights = inputs.index.weights * scales
                indexer(self.geometry, self.keys[group], self.state, self.plan, q, weights=weights, logits=self.logits)
                picks = inputs.picks[group] + self.base  # where a page table would be looked up
                for _ in range(layers):
                    self.rows[layer].index_copy_(0, self.last, inputs.row[:, 0])
                    sparse_mla_decode(inputs.q, self.rows[layer], picks, scale=SCALE)
                    inputs.rest_of_layer()
                    layer += 1

        work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return timed(inputs, graph.replay)


def resident_batch(context: int) -> int:
    """Requests whose rows and keys fit the GPU's memory."""
    return DEVICE_BYTES // (context * (LAYERS * 656 + len(GROUPS) * INDEX_FP8.key_bytes))


def host_backed_batch(context: int, hot_rows: int) -> int:
    """Requests that fit both the GPU's memory and the host pool."""
    shape = DecodeShape(
        Geometry(seats=1, hot_rows=hot_rows, top_k=TOP_K, context_tokens=context), GROUPS, MLA_FP8, context // PAGE_ROWS
    )
    return min(DEVICE_BYTES // sum(shape.device_bytes.values()), HOST_ROWS // context)


def run(result: dict[str, Any], region: HostRegion, keys: Tensor, plans: list[Row], weights: Tensor) -> None:
    """Measure every plan, and put its rows into the document as they come."""
    for plan in plans:
        context, batch = plan["context"], plan["batch"]
        locality, steps = streams_of(context, batch)
        made: Any = None
        for heads in plan["heads"]:
            for stand_in in plan["stand_in"]:
                inputs = Inputs.make(batch, heads, steps, weights if stand_in else None)
                row = {key: plan[key] for key in ("table", "context", "batch", "hot_rows")}
                row |= {"heads": heads, "stand_in": stand_in}
                if plan["hot_rows"]:
                    pages = batch * (context // PAGE_ROWS)
                    made = made or HostBacked(host_copy_of(region, keys, pages), context, batch, plan["hot_rows"])
                    if "miss_share" not in plan:
                        plan["miss_share"] = made.miss_share(inputs, locality)
                    row["miss_share"] = plan["miss_share"]
                    for variant in plan["variants"]:
                        row[variant] = made.measure(inputs, locality, variant)
                else:
                    made = made or Resident(context, batch)
                    row["resident"] = made.measure(inputs)
                result["rows"].append(row)
                note(json.dumps(row))
        del made, steps, inputs
        torch.cuda.empty_cache()


def plans_of(tables: list[str]) -> list[Row]:
    """What to measure, in the order of its weight."""
    every = ["copies skipped", "none", "prefetch", "hits-first"]
    plans: list[Row] = []

    def host(table: str, context: int, hot_rows: int, batch: int = 0, **more: Any) -> None:
        batch = batch or host_backed_batch(context, hot_rows)
        plan = {"table": table, "context": context, "batch": batch, "hot_rows": hot_rows, "variants": every}
        plans.append({**plan, "heads": [8, 64], "stand_in": [True], **more})

    def resident(table: str, context: int, batch: int = 0, **more: Any) -> None:
        plan = {"table": table, "context": context, "batch": batch or resident_batch(context), "hot_rows": 0}
        plans.append({**plan, "heads": [8, 64], "stand_in": [True], **more})

    if "check" in tables:  # that everything runs, on a small host pool
        resident("check", 32_768, 2, stand_in=[True, False])
        host("check", 32_768, 4096, 2)
    if "64k" in tables:
        resident("contexts", 65_536, stand_in=[True, False])
        host("contexts", 65_536, 8192, stand_in=[True, False])
        host("contexts", 65_536, 4096)
        host("contexts", 65_536, 6144)
    if "others" in tables:
        for context in (32_768, 131_072):
            resident("contexts", context)
            host("contexts", context, 8192)
    if "batches" in tables:
        for batch in (1, 2, 4, 8, 16, 28, 54):
            context = 65_536 if batch * 65_536 <= HOST_ROWS else 32_768
            host("batches", context, 4096, batch, heads=[8], variants=every[2:])
            if batch <= resident_batch(context):
                resident("batches", context, batch, heads=[8])
    return plans


def draw(result: dict[str, Any], folder: Path) -> None:
    """Draw tokens a second by context and by batch."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import, and an extra

    figure = Figure(figsize=(11, 4), layout="constrained", dpi=80)
    left, right = figure.subplots(1, 2)
    rows = [row for row in result["rows"] if row["table"] == "contexts" and row["stand_in"]]
    contexts = sorted({row["context"] for row in rows})
    labels = ("all resident", "host pool, 8,192 hot rows", "its copies skipped")
    for at, label in enumerate(labels):
        for shift, heads in ((-0.13, 8), (0.13, 64)):
            of_kind = [row for row in rows if row["heads"] == heads and row["hot_rows"] == (0, 8192, 8192)[at]]
            rate = {row["context"]: _tokens_a_second(row, copied=at != 2) for row in of_kind}
            places = [contexts.index(context) + (at - 1) * 0.27 + shift * 0.9 for context in rate]
            bars = left.bar(places, list(rate.values()), 0.11, color=f"C{at}", alpha=1 if heads == 8 else 0.55)
            if heads == 8:
                bars.set_label(label)
    left.set_xticks(range(len(contexts)), [f"{context >> 10} K" for context in contexts])
    left.set_xlabel("context; dark 8 heads a rank, light 64")
    for kind, label in ((True, "host pool, 4,096 hot rows"), (False, "all resident")):
        points = [row for row in result["rows"] if row["table"] == "batches" and bool(row["hot_rows"]) is kind]
        right.plot([row["batch"] for row in points], [_tokens_a_second(row) for row in points], "-o", label=label)
    right.set_xlabel("requests of 64 K (54: of 32 K), 8 heads a rank")
    for axes in (left, right):
        axes.set_ylabel("tokens a second")
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize="small")
    figure.suptitle(
        f"{result['gpu']}, {result['date'][:10]}: a decode step of 78 layers in 20 GiB; a matmul over "
        f"{result['stand_in_bytes'] / 1e9:.1f} GB a layer stands in for the rest of the model",
        fontsize="medium",
    )
    figure.savefig(folder / "whole_step.png")


def _tokens_a_second(row: Row, *, copied: bool = True) -> float:
    """Of the fastest variant, or of the step with its copies skipped."""
    names = ("resident", *map(str, Overlap)) if copied else ("copies skipped",)
    return float(row["batch"] / min(row[name]["ms"] for name in names if name in row) * 1e3)


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", default=["64k", "others", "batches"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draw", type=Path, metavar="RESULT.json", help="draw a kept result to docs/plots instead")
    arguments = parser.parse_args()
    if arguments.draw:
        draw(json.loads(arguments.draw.read_text(encoding="utf-8")), Path("docs/plots"))
        return
    torch.manual_seed(0)
    plans = plans_of(arguments.tables)
    rows = max(plan["context"] * plan["batch"] for plan in plans if plan["hot_rows"])
    region = HostRegion(rows * LAYERS * MLA_FP8.row_bytes)
    keys = torch.empty((HOST_ROWS // PAGE_ROWS, INDEX_FP8.page_bytes), dtype=torch.uint8, pin_memory=True)
    note(f"{len(region.bytes) >> 30} GiB of host pool")
    weights = torch.randn((WEIGHT_ROWS, HIDDEN), device=DEVICE, dtype=torch.bfloat16)
    result = document(
        "milliseconds of one decode step of a GLM-5.2-shaped model",
        lru_misses=PUBLISHED_MISSES,
        stand_in_bytes=weights.numel() * 2,
        rows=[],
    )
    try:
        run(result, region, keys, plans, weights)
    finally:
        keep(result, arguments.out)


if __name__ == "__main__":
    main()
