"""Sparse MLA decode on one GPU: own kernels and the FlashMLA wheel in the same run, with errors against float64.

On a machine with CUDA: `python benches/decode.py`, or `--sweep` for every number of splits. Rows lie in hot buffers of
many layers, so that no cache holds them; every figure is the median of graph replays, of one layer. The wheel takes 64
or 128 heads: fewer are padded to 64. It has no BF16 sparse decode; beside BF16 rows is its prefill kernel, which
engines call for it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from gpu import document, keep, note
from hisparse_svc.bench.gpu import Timer
from hisparse_svc.kernels import reference
from hisparse_svc.kernels.cuda import decode
from hisparse_svc.kernels.cuda.compile import compile_cubin
from hisparse_svc.kernels.cuda.decode_shapes import BlockShape, block_shapes, choose
from hisparse_svc.kernels.decode.call import DecodeCall, make_call
from hisparse_svc.kernels.decode.rows import BF16_ROWS, FP8_ROWS, StoredRow

if TYPE_CHECKING:
    from torch import Tensor

try:
    import flash_mla
except ImportError:
    flash_mla = None

Row = dict[str, Any]
HEADS = (8, 16, 32, 64, 128)
BATCHES = (1, 4, 8, 16, 32, 64, 128, 256)
TOP_K, SEAT_ROWS, SCALE = 2048, 4160, 192**-0.5
COLD_REQUESTS = 150
CHECKED = 3
WHEEL_HEADS = 64
NO_ROWS = (0.0, 0.25, 0.75)
NO_ROW_CELLS = ((8, 32), (64, 8), (64, 32), (128, 64))  # heads, batch
SMS = 132
MOST_BLOCKS = 140  # of a sweep: a little more than one wave


def stored_rows(count: int, kind: StoredRow) -> Tensor:
    """Rows of random numbers on the GPU; FP8 scales are no powers of two."""
    numbers = torch.randn(count, 576, device="cuda") * 0.5
    if kind is BF16_ROWS:
        return numbers.bfloat16().view(torch.uint8)
    scales = torch.rand(count, 4, device="cuda") * 0.02 + 0.001
    latent = (numbers[:, :512].view(-1, 4, 128) / scales[..., None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    parts = (latent.view(-1, 512), scales, numbers[:, 512:].bfloat16())
    return torch.cat([part.contiguous().view(torch.uint8).view(count, -1) for part in parts], dim=1)


class Scene:
    """Hot buffers of several layers, and the picks of a batch."""

    def __init__(self, kind: StoredRow, batch: int) -> None:
        self.kind, self.batch = kind, batch
        self.layers = max(4, -(-COLD_REQUESTS // batch))
        rows = batch * SEAT_ROWS
        sample = stored_rows(1 << 17, kind)
        copies = -(-self.layers * rows // len(sample))
        self.pool = sample.repeat(copies, 1)[: self.layers * rows].view(self.layers, rows, kind.row_bytes)
        seats = [torch.randperm(SEAT_ROWS, device="cuda")[:TOP_K] + seat * SEAT_ROWS for seat in range(batch)]
        self.picks = torch.stack(seats).int().view(batch, 1, TOP_K)

    def calls(self, heads: int) -> list[DecodeCall]:
        """A call of each layer."""
        q = (torch.randn(self.batch, 1, heads, 576, device="cuda") * 0.5).bfloat16()
        empty: Row = {"sink": None, "counts": None, "out": None, "lse": None, "max_sms": 0}
        first = make_call(q, self.pool[0], self.picks, scale=SCALE, **empty)
        shared = empty | {"out": first.out, "lse": first.lse}
        return [make_call(q, layer, self.picks, scale=SCALE, **shared) for layer in self.pool]

    def errors(self, call: DecodeCall, out: Tensor, lse: Tensor) -> Row:
        """Relative error of the output and error of the LSE over a few requests."""
        few = slice(0, CHECKED)
        empty: Row = {"sink": None, "counts": None, "out": None, "lse": None, "max_sms": 0}
        wanted = make_call(call.q[few].double(), call.rows, call.picks[few], scale=SCALE, **empty)
        reference.sparse_mla_decode(wanted)
        off = (out[few].double() - wanted.out).norm() / wanted.out.norm()
        return {"error": float(f"{off:.2e}"), "lse_error": float(f"{(lse[few] - wanted.lse).abs().max():.2e}")}


def own(timer: Timer, scene: Scene, calls: list[DecodeCall], splits: int = 0, shape: BlockShape | None = None) -> Row:
    """Our kernel."""

    def work() -> None:
        for call in calls:
            decode.sparse_mla_decode(call, splits=splits, shape=shape)

    row = timer(work, len(calls))
    calls[0].out.fill_(torch.nan)
    decode.sparse_mla_decode(calls[0], splits=splits, shape=shape)
    return {**row, **scene.errors(calls[0], calls[0].out, calls[0].lse)}


def wheel(timer: Timer, scene: Scene, calls: list[DecodeCall]) -> Row:
    """The FlashMLA wheel, its queries padded before the clock starts."""
    heads = calls[0].heads
    q = calls[0].q.new_zeros(scene.batch, 1, max(heads, WHEEL_HEADS), 576)
    q[:, :, :heads] = calls[0].q
    if scene.kind is FP8_ROWS:
        schedule = flash_mla.get_mla_metadata()[0]
        pages = [call.rows.view(torch.float8_e4m3fn).view(-1, 64, 1, scene.kind.row_bytes) for call in calls]

        def one(layer: int) -> tuple[Tensor, Tensor]:
            found: tuple[Tensor, Tensor] = flash_mla.flash_mla_with_kvcache(
                q, pages[layer], None, None, 512, schedule, None, SCALE, False, True, scene.picks
            )
            return found[0][:, :, :heads], found[1].transpose(1, 2)[:, :, :heads]
    else:
        rows = [call.rows.view(torch.bfloat16).view(-1, 1, 576) for call in calls]

        def one(layer: int) -> tuple[Tensor, Tensor]:
            found = flash_mla.flash_mla_sparse_fwd(q[:, 0], rows[layer], scene.picks, SCALE)
            return found[0][:, None, :heads], found[2][:, None, :heads]

    def work() -> None:
        for layer in range(len(calls)):
            one(layer)

    return {**timer(work, len(calls)), **scene.errors(calls[0], *one(0))}


def no_rows(timer: Timer, kinds: list[StoredRow], *, beside: bool) -> list[Row]:
    """The same where a share of the picks, anywhere among them, is -1."""
    found = []
    for kind in kinds:
        for heads, batch in NO_ROW_CELLS:
            scene = Scene(kind, batch)
            calls, chance = scene.calls(heads), torch.rand(scene.picks.shape, device="cuda")
            for share in NO_ROWS:
                scene.picks.masked_fill_(chance < share, -1)
                row: Row = {"rows": kind.name, "heads": heads, "batch": batch, "no_row_share": share}
                row["own"] = own(timer, scene, calls)
                if beside:
                    row["wheel"] = wheel(timer, scene, calls)
                found.append(row)
                note(json.dumps(row))
    return found


def compile_one(work: tuple[BlockShape, int]) -> None:
    """Put one kernel into the cache of cubins."""
    shape, splits = work
    constants = dict(decode.kernel_constants(shape, splits), THREADS=shape.threads, SHARED_BYTES=decode.SHARED_BYTES)
    compile_cubin(shape.source, constants, "sm_90a")


def compile_all() -> None:
    """Compile what may be used, on all cores."""
    shapes = block_shapes("fp8") + block_shapes("bf16")
    work = [(shape, splits) for shape in shapes for splits in shape.splits]
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("fork")) as pool:
        list(pool.map(compile_one, work))
    note(len(work), "kernels compiled")


def table(
    timer: Timer, kinds: list[StoredRow], heads: list[int], batches: list[int], *, sweep: bool, beside: bool
) -> list[Row]:
    """One row per format, head count and batch."""
    found = []
    for kind in kinds:
        for batch in batches:
            scene = Scene(kind, batch)
            for count in heads:
                calls = scene.calls(count)
                shape, splits = choose(kind.name, count, batch, SMS)
                row: Row = {"rows": kind.name, "heads": count, "batch": batch}
                row |= {"block_heads": shape.heads, "splits": splits}
                row["own"] = own(timer, scene, calls)
                if beside:
                    row["wheel"] = wheel(timer, scene, calls)
                    row["wheel_over_own"] = round(row["wheel"]["us"] / row["own"]["us"], 2)
                if sweep:
                    row["by_splits"] = swept(timer, scene, calls, kind.name, count)
                found.append(row)
                note(json.dumps(row))
            del scene
    return found


def swept(timer: Timer, scene: Scene, calls: list[DecodeCall], kind: str, heads: int) -> Row:
    """Times of every block that could serve these heads, at every number of splits that runs at once."""
    found: Row = {}
    for shape in block_shapes(kind):
        if shape.heads >= 2 * max(heads, 8):
            continue
        for splits in shape.splits:
            grid = scene.batch * shape.blocks(heads, splits)
            if grid <= MOST_BLOCKS or (splits == 1 and shape.heads * 4 > heads):
                found[f"{shape.heads}/{splits}"] = own(timer, scene, calls, splits, shape)["us"]
    return dict(sorted(found.items(), key=lambda item: float(item[1])))


def summary(rows: list[Row]) -> str:
    """A short table."""
    lines = []
    for row in rows:
        name = f"{row['rows']:5} h={row['heads']:3} batch {row['batch']:3}"
        text = f"{name} {row['block_heads']:3}/{row['splits']:<2}  {row['own']['us']:7.2f} us"
        text += f" error {row['own']['error']:.1e} lse {row['own']['lse_error']:.1e}"
        if "wheel" in row:
            text += (
                f"   wheel {row['wheel']['us']:7.2f} error {row['wheel']['error']:.1e} = {row['wheel_over_own']:.2f}x"
            )
        if "by_splits" in row:
            text += "   " + " ".join(f"{name}:{us:.1f}" for name, us in list(row["by_splits"].items())[:5])
        lines.append(text)
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    parser.add_argument("--rows", nargs="*", default=["fp8", "bf16"])
    parser.add_argument("--heads", nargs="*", type=int, default=list(HEADS))
    parser.add_argument("--batches", nargs="*", type=int, default=list(BATCHES))
    parser.add_argument("--no-wheel", action="store_true", help="own kernels alone")
    parser.add_argument("--sweep", action="store_true", help="every number of splits")
    arguments = parser.parse_args()
    compile_all()
    torch.manual_seed(0)
    kinds = [kind for kind in (FP8_ROWS, BF16_ROWS) if kind.name in arguments.rows]
    beside = flash_mla is not None and not arguments.no_wheel
    timer = Timer()
    rows = table(timer, kinds, arguments.heads, arguments.batches, sweep=arguments.sweep, beside=beside)
    holes = no_rows(timer, kinds, beside=beside)
    unit = "us, median of graph replays, of one layer; top-k 2048, 4160 rows a request; errors against float64"
    keep(document(unit, rows=rows, no_rows=holes), arguments.out)
    print(summary(rows))
    for row in holes:
        beside_us = f"   wheel {row['wheel']['us']:7.2f}" if "wheel" in row else ""
        share = f"{row['no_row_share']:4.0%} of -1"
        print(
            f"{row['rows']:5} h={row['heads']:3} batch {row['batch']:3} {share}  {row['own']['us']:7.2f} us{beside_us}"
        )


if __name__ == "__main__":
    main()
