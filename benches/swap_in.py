"""Swap-in on one GPU in depth: resolvers alone, the table of `hisparse-svc bench`, groups of layers, backups.

On a machine with CUDA: `python benches/swap_in.py`. Every figure is the median of graph replays over layers that no
cache holds; what was copied is checked row by row.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from gpu import document, keep, note
from hisparse_svc.bench import plots
from hisparse_svc.bench.gpu import HostRegion, Timer
from hisparse_svc.bench.scene import TOKENS, TOP_K, Plain, Scene, geometry_of, hosts_of, random_step
from hisparse_svc.bench.swap_in import MOST_GROUPS, UNIT, Row, best_of, layer_bytes, layouts, swap_in_row
from hisparse_svc.engine import Geometry, HotCache, RowFormat
from hisparse_svc.kernels import PAGE_ROWS, StepPlan, cuda
from hisparse_svc.kernels.cuda.shapes import Resolver, resolvers

if TYPE_CHECKING:
    from collections.abc import Callable


def resolve_row(timer: Timer, geometry: Geometry, misses: int, which: Resolver) -> Row:
    """One resolver over the layers of a model, each with its own words; picks just written, and picks from memory."""
    layers = 78 if geometry.query_rows == 1 else 20
    cache = HotCache(geometry, [1], RowFormat("rows", 16), "cuda")
    cache.state.lengths[:] = TOKENS
    cache.state.newest_from[:] = TOKENS - 1
    words, picks = random_step(cache, misses, cache.state.lengths)
    many = words[0].repeat(layers, 1, 1)
    live = many.clone()
    seats = torch.randperm(geometry.seats, device="cuda")
    plans = [StepPlan.allocate(geometry, "cuda") for _ in range(layers)]
    for plan in plans:
        plan.seats[:], plan.picks[:] = seats.int(), picks[0][seats]

    def work(used: list[StepPlan]) -> None:
        for layer, plan in enumerate(used):
            cuda.resolve(geometry, live[layer], cache.state, plan, resolver=which)

    def reset() -> None:
        live.copy_(many)

    warm, cold = timer(lambda: work(plans[:1] * layers), layers, reset), timer(lambda: work(plans), layers, reset)
    if not all(bool((plan.counts == misses).all()) for plan in plans):
        raise AssertionError(f"{misses} misses were set up, {plans[0].counts.tolist()[:4]} … found")
    shape = {"hot_rows": geometry.hot_rows, "query_rows": geometry.query_rows, "context": geometry.context_tokens}
    row = {"resolver": which.source, **shape, "requests": geometry.seats, "misses": misses, **warm}
    return {**row, "cold_picks_us": cold["us"]}


def table_resolve(timer: Timer) -> list[Row]:
    """Resolvers alone."""
    rows = []
    shapes = [(hot, 1, seats) for hot in (4096, 8192) for seats in (128, 32, 1)] + [(8192, 2, 128), (8192, 4, 128)]
    for hot, query_rows, seats in shapes:
        for context in (TOKENS, 163_840):
            geometry = Geometry(seats, hot, TOP_K, query_rows, context)
            for which in resolvers(geometry)[: 2 if context == TOKENS else 1]:
                for misses in (0, 205, 410, 2048):
                    rows.append(resolve_row(timer, geometry, misses, which))
                    note(json.dumps(rows[-1]))
    return rows


def table_swap_in(region: HostRegion, timer: Timer, options: argparse.Namespace) -> list[Row]:
    """The table of swap-ins."""
    rows, plain = [], Plain()
    for row_bytes in options.row_bytes:
        region.number_rows(row_bytes)
        for seats in (128, 32):
            groups = min(MOST_GROUPS, len(region.bytes) // layer_bytes(row_bytes))
            scene = Scene(geometry_of(seats), hosts_of(region, row_bytes, groups, 1))
            scene.ascending = options.ascending
            for layout, pages in layouts(seats, options.only, options.layouts).items():
                scene.place(pages)
                for misses in options.misses:
                    rows.append(swap_in_row(timer, scene, plain, misses, layout))
                    note(json.dumps(rows[-1]))
    return rows


def groups_row(region: HostRegion, timer: Timer, seats: int, misses: int) -> Row:
    """Four layers that share an index: side by side and fetched at once, first layer first, or layer by layer."""
    side = Scene(geometry_of(seats), hosts_of(region, 656, 2, 4))
    apart = Scene(geometry_of(seats), hosts_of(region, 656, 8, 1))
    side.set(misses)
    apart.set(misses)

    def first_then_rest(blocks: int) -> Callable[[int], None]:
        def step(group: int) -> None:
            side.gather(group, blocks, range(1))
            side.gather(group, blocks, range(1, 4))

        return step

    blocks = (8, 16)
    row: Row = {"requests": seats, "misses": misses, "layers": 4}
    row["at_once"] = best_of(timer, side, lambda count: lambda group: side.gather(group, count), blocks)
    side.check()
    alone = lambda count: lambda group: side.gather(group, count, range(1))  # noqa: E731
    row["first_of_side_by_side"] = best_of(timer, side, alone, blocks)
    row["first_then_rest"] = best_of(timer, side, first_then_rest, blocks)
    row["one_layer_apart"] = best_of(timer, apart, lambda count: lambda group: apart.gather(group, count), blocks)
    row["at_once_over_four_apart"] = round(row["at_once"]["us"] / row["one_layer_apart"]["us"] / 4, 3)
    return row


def backup_row(region: HostRegion, timer: Timer, row_bytes: int, layers: int, groups: int) -> Row:
    """One step's rows of 128 requests, and a prefill's 16,384 tokens."""
    scene, tokens = Scene(geometry_of(128), hosts_of(region, row_bytes, groups, layers)), 16_384
    new = torch.zeros((layers, tokens, row_bytes), dtype=torch.uint8, device="cuda")
    pages = torch.arange(tokens // PAGE_ROWS, dtype=torch.int32, device="cuda")

    def bulk(blocks: int) -> Callable[[int], None]:
        return lambda group: cuda.backup_pages(scene.geometry, scene.hosts[group], new, pages, blocks=blocks)

    row: Row = {"row_bytes": row_bytes, "layers": layers, "step": timer(scene.each(scene.backup), groups)}
    row["pages"] = best_of(timer, scene, bulk, (8, 16, 32))
    row["pages_gb_s"] = round(new.numel() / row["pages"]["us"] / 1e3, 1)
    return row


def summary(result: Row) -> str:
    """A short table."""
    lines = []
    for row in result.get("resolve", []):
        if row["requests"] == 128 and row["misses"] in (0, 205):
            name = f"{row['resolver'][8:-3]} {row['hot_rows']} x{row['query_rows']} {row['context']}"
            lines.append(f"{name:28} 128 x {row['misses']:4}  {row['us']:6.2f} us ({row['cold_picks_us']} cold picks)")
    for row in result.get("swap_in", []):
        if row["misses"]:
            best, yardstick = row["gather"], row["plain"]
            lines.append(
                f"{row['row_bytes']:5} B {row['requests']:4} x {row['misses']:4} {row['layout']:10}"
                f" gather {row['gather_default']['us']:7.1f} best {best['us']:7.1f} ({best['blocks']:2})"
                f" swap-in {row['swap_in']['us']:7.1f} plain {yardstick['us']:7.1f} ({yardstick['blocks']:2})"
                f" memcpy {row['memcpy']['us']:7.1f}"
                f" plain/gather {row['plain_over_gather']:.3f}"
            )
    lines += [
        json.dumps({k: v["us"] if isinstance(v, dict) else v for k, v in row.items()})
        for row in result.get("groups", []) + result.get("backup", [])
    ]
    return "\n".join(lines)


def main() -> None:
    """Run the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benches/results/swap_in.json"))
    parser.add_argument("--plots", type=Path, help="folder for pictures")
    parser.add_argument("--gib", type=int, default=45, help="host memory: 45 holds 128 requests of 64 K tokens")
    parser.add_argument(
        "--layouts", type=Path, nargs="*", default=[], help="other extents after churn than the bundled"
    )
    parser.add_argument("--ascending", action="store_true", help="picks by token, as a deterministic top-k gives them")
    parser.add_argument("--private", action="store_true", help="private memory, which may get huge pages")
    parser.add_argument("--only", nargs="+", default=[], help="layouts to measure")
    parser.add_argument("--misses", type=int, nargs="+", default=[0, 8, 32, 102, 205, 410])
    parser.add_argument("--row-bytes", type=int, nargs="+", default=[656, 1152])
    parser.add_argument("--parts", nargs="+", default=["resolve", "swap_in", "groups", "backup"])
    options = parser.parse_args()
    torch.manual_seed(1)
    timer, result = Timer(), document(UNIT)
    if "resolve" in options.parts:
        result["resolve"] = table_resolve(timer)
    if set(options.parts) & {"swap_in", "groups", "backup"}:
        region = HostRegion(options.gib << 30, private=options.private)
        result["host"] = {"gib": options.gib, "private": options.private, "huge_bytes": HostRegion.huge_bytes()}
        note("registered", result["host"])
        if "swap_in" in options.parts:
            result["swap_in"] = table_swap_in(region, timer, options)
        if "groups" in options.parts:
            region.number_rows(656)
            result["groups"] = [groups_row(region, timer, *shape) for shape in ((128, 102), (128, 205), (32, 205))]
        if "backup" in options.parts:
            shapes = ((656, 1, 8), (656, 4, 2), (1152, 1, 5), (1152, 4, 1))
            result["backup"] = [backup_row(region, timer, *shape) for shape in shapes]
    keep(result, options.out)
    if options.plots and "swap_in" in result:
        plots.draw(result, options.plots)
    print(summary(result))


if __name__ == "__main__":
    main()
