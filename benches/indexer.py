"""The indexer on one GPU: logits beside the DeepGEMM wheel and beside reading the keys, top-k, and both in a row.

On a machine with CUDA: `python benches/indexer.py --out benches/results/indexer.json`. Every figure is the median of
graph replays over as many layers as it takes for no cache to hold their keys. DeepGEMM's schedule is made before the
clock starts. Logits are checked against float64, picks against a sort.
"""

from __future__ import annotations

import argparse
import ctypes
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from cuda.core import LaunchConfig, Stream, launch
from gpu import document, keep, note
from hisparse_svc.bench.gpu import Timer, plain_kernel
from hisparse_svc.kernels import Geometry, IndexKeys, SeatState, StepPlan, index_logits_shape, quantise
from hisparse_svc.kernels.cuda import index as kernels
from hisparse_svc.kernels.index import deep_gemm as wheel
from hisparse_svc.kernels.index.call import IndexCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

try:
    import deep_gemm
except ImportError:
    deep_gemm = None

Row = dict[str, Any]
SHAPES = [(65_536, 64), *((context, batch) for context in (32_768, 131_072, 1 << 20) for batch in (1, 16, 64))]
TOP_K, KEY_BYTES = 2048, 132
COLD_BYTES, LEAST_LAYERS, MOST_LAYERS = 400 << 20, 3, 24
SAMPLE_PAGES = 1 << 14
CHECKED_TOKENS = 65_536
READ_GRIDS, READ_THREADS = (264, 528), 512


class Read:
    """Time to read the keys: a kernel that reads bytes in address order and does nothing else (`plain_read.cu`)."""

    def __init__(self) -> None:
        self._kernel = plain_kernel(Path(__file__).parent / "plain_read.cu")
        self._sink = torch.zeros(1, dtype=torch.int32, device="cuda")

    def __call__(self, pages: Tensor, grid: int) -> None:
        """Read them."""
        launch(
            Stream.from_handle(torch.cuda.current_stream().cuda_stream),
            LaunchConfig(grid=grid, block=READ_THREADS),
            self._kernel,
            pages.data_ptr(),
            ctypes.c_int64(pages.numel() // 16),
            self._sink.data_ptr(),
        )


class Scene:
    """Requests of one length, and their keys in several layers; pages anywhere."""

    def __init__(self, context: int, batch: int, heads: int) -> None:
        self.context, self.batch = context, batch
        self.pages = batch * context // 64
        self.layers = min(MOST_LAYERS, max(LEAST_LAYERS, -(-COLD_BYTES // (self.pages * 64 * KEY_BYTES))))
        geometry = Geometry(seats=batch, hot_rows=4096, top_k=TOP_K, context_tokens=context)
        sample = IndexKeys.allocate(SAMPLE_PAGES, "cuda")
        numbers = torch.randn((SAMPLE_PAGES, 64, 128), device="cuda").mul_(100).clamp_(-448, 448)
        sample.values().view(torch.uint8).copy_(numbers.to(torch.float8_e4m3fn).view(torch.uint8))
        sample.scales().uniform_(0.001, 0.011)
        copies = -(-self.layers * self.pages // SAMPLE_PAGES)
        self.pool = sample.pages.repeat(copies, 1)[: self.layers * self.pages]
        state, plan = SeatState.allocate(geometry, "cuda"), StepPlan.allocate(geometry, "cuda")
        state.page_map.copy_(torch.randperm(self.pages, device="cuda").view(batch, -1))
        state.lengths[:] = context
        plan.seats[:] = torch.randperm(batch)
        q, scales = quantise(torch.randn((batch, 1, heads, 128), device="cuda"))
        weights = torch.randn((batch, 1, heads), device="cuda") * scales
        logits = torch.empty(index_logits_shape(geometry, batch), device="cuda")
        self.calls = [
            IndexCall(geometry, IndexKeys(part), state, plan, state.page_map, q, weights, logits)
            for part in self.pool.split(self.pages)
        ]

    @property
    def first(self) -> IndexCall:
        """The call of the first layer."""
        return self.calls[0]

    def each(self, step: Callable[[IndexCall], object]) -> Callable[[], None]:
        """Work that does a step for every layer."""

        def work() -> None:
            for call in self.calls:
                step(call)

        return work

    def error(self) -> float:
        """Relative error of the first layer's logits of the last request against float64."""
        call, tokens = self.first, min(self.context, CHECKED_TOKENS)
        seat = int(call.plan.seats[-1])
        pages = call.page_map[seat, : tokens // 64].long()
        numbers = call.keys.values()[pages].double().flatten(0, 1) * call.keys.scales()[pages].double().view(-1, 1)
        wanted = (numbers @ call.q[-1, 0].double().T).clamp_min(0) @ call.weights[-1, 0].double()
        return float((call.logits[-1, 0, :tokens].double() - wanted).norm() / wanted.norm())

    def check_picks(self) -> None:
        """Demand that the picks have the best scores, for every request."""
        call = self.first
        for request in range(self.batch):
            scores, picks = call.logits[request, 0, : self.context], call.plan.picks[request, 0].long()
            best = scores.sort(descending=True).values[:TOP_K]
            if not torch.equal(scores[picks].sort(descending=True).values, best) or not bool((picks.diff() > 0).all()):
                raise AssertionError(f"request {request}: the picks are not the best")


def measure(timer: Timer, read: Read, context: int, batch: int, heads: int) -> Row:
    """One row of the table."""
    scene = Scene(context, batch, heads)
    layers, key_bytes = scene.layers, batch * context * KEY_BYTES

    def top_k(call: IndexCall) -> None:
        kernels.top_k(call.geometry, call.state, call.plan, call.logits)

    def both(call: IndexCall) -> None:
        kernels.logits(call)
        top_k(call)

    def reading(grid: int) -> Row:
        return timer(scene.each(lambda call: read(call.keys.pages, grid)), layers)

    row: Row = {"context": context, "batch": batch, "heads": heads, "layers": layers}
    row["read"] = min((reading(grid) for grid in READ_GRIDS), key=lambda found: float(found["us"]))
    row["logits"] = timer(scene.each(kernels.logits), layers)
    kernels.logits(scene.first)
    row["logits_error"] = float(f"{scene.error():.2e}")
    row["top_k"] = timer(scene.each(top_k), layers)
    scene.check_picks()
    row["both"] = timer(scene.each(both), layers)
    row["logits_gb_s"] = round(key_bytes / row["logits"]["us"] / 1e3)
    row["logits_over_read"] = round(row["logits"]["us"] / row["read"]["us"], 3)
    if deep_gemm is not None:
        given = [wheel.arguments(call) for call in scene.calls]

        def theirs() -> None:
            for arguments in given:
                deep_gemm.fp8_paged_mqa_logits(**arguments)

        row["deep_gemm"] = timer(theirs, layers)
        row["deep_gemm_gb_s"] = round(key_bytes / row["deep_gemm"]["us"] / 1e3)
        row["deep_gemm_over_logits"] = round(row["deep_gemm"]["us"] / row["logits"]["us"], 3)
    return row


def summary(rows: list[Row]) -> str:
    """A short table."""
    lines = []
    for row in rows:
        text = f"{row['context']:8} x {row['batch']:3} h={row['heads']}  logits {row['logits']['us']:8.2f} us"
        text += f" {row['logits_gb_s']:5} GB/s  {row['logits_over_read']:.2f} x read  error {row['logits_error']:.1e}"
        text += f"  top-k {row['top_k']['us']:7.2f}  both {row['both']['us']:8.2f}"
        if "deep_gemm" in row:
            text += f"  DeepGEMM {row['deep_gemm']['us']:8.2f} us {row['deep_gemm_gb_s']:5} GB/s"
            text += f" = {row['deep_gemm_over_logits']:.2f}x"
        lines.append(text)
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    parser.add_argument("--heads", nargs="*", type=int, default=[64])
    arguments = parser.parse_args()
    torch.manual_seed(0)
    timer, read, rows = Timer(), Read(), []
    for heads in arguments.heads:
        for context, batch in SHAPES:
            rows.append(measure(timer, read, context, batch, heads))
            note(json.dumps(rows[-1]))
    unit = "us, median of graph replays, of one layer; top-k 2048; GB/s of keys and scales"
    keep(document(unit, deep_gemm=getattr(deep_gemm, "__version__", None), rows=rows), arguments.out)
    print(summary(rows))


if __name__ == "__main__":
    main()
