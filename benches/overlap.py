"""Hits-first overlap on one GPU: gather, attention, one after the other, and attention to the hits beside the gather.

On a machine with CUDA: `python benches/overlap.py --out benches/results/overlap.json`. A step is resolve, gather and
attention of one layer; every figure is the median of graph replays over layers that no cache holds. Both ways must give
the same attention.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from gpu import document, keep, note
from hisparse_svc.bench.gpu import HostRegion, Timer
from hisparse_svc.bench.scene import TOP_K, Scene, geometry_of, hosts_of
from hisparse_svc.kernels import SplitPicks, attend_beside_gather, cuda, gather_blocks, sparse_mla_decode
from hisparse_svc.kernels.decode.api import least_blocks
from hisparse_svc.kernels.decode.rows import FP8_ROWS, pack_rows

if TYPE_CHECKING:
    from torch import Tensor

Row = dict[str, Any]
BATCHES, HEADS, MISSES = (32, 128), (8, 64), (41, 102, 205)
ROW_BYTES, SCALE = FP8_ROWS.row_bytes, 192**-0.5
SAMPLE_ROWS = 1 << 16
SAME = 6e-3
NAN_BYTE = 0xFF
SMS = torch.cuda.get_device_properties(0).multi_processor_count if torch.cuda.is_available() else 0


def sample_rows() -> Tensor:
    """Rows of random numbers, with scales that are no powers of two."""
    return pack_rows(torch.randn((SAMPLE_ROWS, 576), device="cuda"), FP8_ROWS)


def fill(region: HostRegion, rows: Tensor) -> None:
    """Write the rows to host memory, over and over."""
    sample = rows.cpu().flatten()
    size = len(sample)

    def copy(start: int) -> None:
        part = region.bytes[start : start + size]
        part.copy_(sample[: len(part)])

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(copy, range(0, len(region.bytes), size)))


class Step:
    """Steps over all groups of a scene, each way."""

    def __init__(self, scene: Scene, heads: int) -> None:
        self.scene, batch = scene, scene.geometry.seats
        self.q = torch.randn((batch, 1, heads, 576), device="cuda").bfloat16()
        self.out = torch.empty((batch, 1, heads, 512), dtype=torch.bfloat16, device="cuda")
        self.lse = torch.empty((batch, 1, heads), device="cuda")
        self.split = SplitPicks.allocate(scene.geometry, batch, "cuda")

    def expect(self, misses: int) -> None:
        """Choose the SMs of the gather, as a session does from the last step."""
        self.expected = misses * self.scene.geometry.seats
        self.blocks = gather_blocks(self.expected)
        spare = SMS - least_blocks(self.q, self.scene.cache.rows[0][0])
        self.beside = gather_blocks(self.expected, spare_sms=max(0, spare))

    def gather(self, group: int) -> None:
        """The gather alone."""
        self.scene.gather(group, self.blocks)

    def attention(self, group: int) -> None:
        """Attention over all picks, alone."""
        rows = self.scene.plans[group].rows
        sparse_mla_decode(self.q, self.scene.cache.rows[group][0], rows, scale=SCALE, out=self.out, lse=self.lse)

    def serial(self, group: int) -> None:
        """Resolve, gather, attention."""
        self.scene.resolve(group)
        self.gather(group)
        self.attention(group)

    def overlapped(self, group: int) -> None:
        """Resolve; attention over hits beside the gather, then over misses."""
        self.resolve_apart(group)
        scene, own = self.scene, {"out": self.out, "lse": self.lse}
        hot, plan, state = scene.cache.rows[group], scene.plans[group], scene.cache.state
        cuda.gather(scene.geometry, scene.hosts[group], hot, state, plan, blocks=self.beside, between=self.split)
        attend_beside_gather(self.q, hot[0], plan.rows, self.split, scale=SCALE, max_sms=SMS - self.beside, **own)

    def resolve_apart(self, group: int) -> None:
        """Resolve, hits and misses apart."""
        scene = self.scene
        cuda.resolve(scene.geometry, scene.cache.words[group], scene.cache.state, scene.plans[group], split=self.split)

    def resolve(self, group: int) -> None:
        """Resolve alone."""
        self.scene.resolve(group)

    def check(self) -> None:
        """Demand that both ways give the same attention in the first group."""
        results = []
        for way in (self.serial, self.overlapped):
            self.scene.reset()
            self.out.fill_(torch.nan)
            self.scene.cache.rows[0][0][self.scene.listed(0)[1]] = NAN_BYTE  # a miss that is read too early shows
            way(0)
            torch.cuda.synchronize()
            results.append(self.out.double())
        error = float((results[0] - results[1]).norm() / results[0].norm())
        if not error < SAME:
            raise AssertionError(f"the two ways differ by {error}")


def measure(timer: Timer, scene: Scene, step: Step, misses: int) -> Row:
    """One row of the table; the scene is set to these misses."""
    step.expect(misses)
    step.check()
    row: Row = {"batch": scene.geometry.seats, "heads": step.q.shape[2], "misses": scene.missing()}
    row |= {"blocks": step.blocks, "blocks_beside": step.beside}
    for name in ("gather", "attention", "serial", "overlapped"):
        scene.reset()
        scene.each(scene.resolve)()
        row[name] = timer(scene.each(getattr(step, name)), scene.groups, scene.reset)
    for name in ("resolve", "resolve_apart"):
        row[name] = timer(scene.each(getattr(step, name)), scene.groups, scene.reset)["us"]
    longest = max(row["gather"]["us"], row["attention"]["us"])
    row["overlapped_over_longest"] = round(row["overlapped"]["us"] / longest, 3)
    row["serial_over_longest"] = round(row["serial"]["us"] / longest, 3)
    best = min(("serial", "overlapped"), key=lambda name: float(row[name]["us"]))
    row["chosen"], row["chosen_over_longest"] = best, round(row[best]["us"] / longest, 3)
    return row


def summary(rows: list[Row]) -> str:
    """A short table."""
    return "\n".join(
        f"batch {row['batch']:3} h={row['heads']:2} misses {row['misses']:3}  gather {row['gather']['us']:7.1f} us"
        f"  attention {row['attention']['us']:6.1f}  serial {row['serial']['us']:7.1f}"
        f" ({row['serial_over_longest']:.2f})  overlapped {row['overlapped']['us']:7.1f}"
        f" ({row['overlapped_over_longest']:.2f})  {row['chosen']}"
        f"  resolve {row['resolve']} apart {row['resolve_apart']}"
        for row in rows
    )


def main() -> None:
    """Measure, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    parser.add_argument("--groups", type=int, default=4, help="layers in turn, of 5.2 GiB of host memory each")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    rows, timer = sample_rows(), Timer()
    region = HostRegion(arguments.groups * 128 * 65_536 * ROW_BYTES)
    fill(region, rows)
    note("host memory filled")
    table = []
    for batch in BATCHES:
        scene = Scene(geometry_of(batch), hosts_of(region, ROW_BYTES, arguments.groups, 1))
        for hot in scene.cache.rows:
            hot[0].copy_(rows.repeat(-(-hot.shape[1] // SAMPLE_ROWS), 1)[: hot.shape[1]])
        steps = [Step(scene, heads) for heads in HEADS]
        for misses in MISSES:
            scene.set(misses)
            for step in steps:
                table.append(measure(timer, scene, step, misses))
                note(json.dumps(table[-1]))
        del scene, steps
    unit = f"us, median of graph replays, of one layer; {ROW_BYTES}-byte rows, top-k {TOP_K}, 64 K tokens each"
    keep(document(unit, rows=table), arguments.out)
    print(summary(table))


if __name__ == "__main__":
    main()
