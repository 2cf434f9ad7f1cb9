"""Swap-in on one GPU: what resolve, gather and backup take, beside the machine's memcpy and a plain ordered gather.

On a machine with CUDA: `python benches/swap_in.py --layouts benches/layouts/*.json`; those files are what
`cargo run -p hisparse-core --example page_layout` prints. Every figure is the median of graph replays
over layers that no cache holds; what was copied is checked row by row.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from gpu import HostRegion, Timer, note
from hisparse_svc.engine import Geometry, HotCache, RowFormat
from hisparse_svc.kernels import PAGE_ROWS, StepPlan, cuda
from hisparse_svc.kernels.cuda.shapes import Resolver, resolvers
from swap_in_scene import POOL_PAGES, TOKENS, TOP_K, Plain, Scene, random_step

if TYPE_CHECKING:
    from collections.abc import Callable

Row = dict[str, Any]
BLOCKS = (8, 12, 16, 24, 32, 64)
SMALLEST_CHURNED_PAGES = 128


def best_of(timer: Timer, scene: Scene, step: Callable[[int], Callable[[int], None]], blocks: tuple[int, ...]) -> Row:
    """The best time over numbers of blocks, and the time of each."""
    found = {count: timer(scene.each(step(count)), scene.groups) for count in blocks}
    best = min(found, key=lambda count: found[count]["us"])
    return {**found[best], "blocks": best, "by_blocks": {count: row["us"] for count, row in found.items()}}


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


def swap_in_row(timer: Timer, scene: Scene, plain: Plain, misses: int, layout: str) -> Row:
    """Resolve and gather of one layer, and the yardsticks on the same rows."""
    scene.set(misses)
    requests, size = scene.geometry.seats, scene.geometry.seats * misses * scene.row_bytes
    row: Row = {"row_bytes": scene.row_bytes, "requests": requests, "misses": misses, "layout": layout}
    row["picks"] = "ascending" if scene.ascending else "shuffled"
    row["resolve"] = timer(scene.each(scene.resolve), scene.groups, scene.reset)
    gather = (lambda blocks: lambda group: scene.gather(group, blocks)) if misses else None
    blocks = 8
    if gather:
        scene.set(misses)
        row["gather"] = best_of(timer, scene, gather, BLOCKS)
        scene.check()
        row["plain"] = best_of(timer, scene, plain.of(scene), Plain.BLOCKS)
        row["plain_to_1_mib"] = best_of(
            timer, scene, plain.of(scene, window_rows=(1 << 20) // scene.row_bytes), (8, 16)
        )
        target = torch.empty(size, dtype=torch.uint8, device="cuda")
        sources = [host.view.flatten()[:size] for host in scene.hosts]

        def copy(group: int) -> None:
            target.copy_(sources[group], non_blocking=True)

        row["memcpy"] = timer(scene.each(copy), scene.groups)
        default = cuda_blocks(requests * misses)
        row["gather_default"] = {"us": row["gather"]["by_blocks"][default], "blocks": default}
        row["gather_gb_s"] = round(size / row["gather_default"]["us"] / 1e3, 1)
        row["plain_over_gather"] = round(row["plain"]["us"] / row["gather_default"]["us"], 3)
        blocks = default
    both = scene.each(scene.resolve, lambda group: scene.gather(group, blocks))
    row["swap_in"] = timer(both, scene.groups, scene.reset)
    scene.check()
    if gather:
        row["swap_in_over_plain"] = round(row["swap_in"]["us"] / row["plain"]["us"], 3)
    return row


def cuda_blocks(rows: int) -> int:
    """The product's choice, among those measured."""
    from hisparse_svc.kernels import gather_blocks  # noqa: PLC0415 - beside its one use

    return gather_blocks(rows)


def layouts(files: list[Path], seats: int) -> dict[str, list[list[int]]]:
    """Host pages of each seat: one extent, anywhere, and as the allocator left them after churn."""
    pages = TOKENS // PAGE_ROWS
    order = torch.randperm(POOL_PAGES).tolist()
    found = {
        "contiguous": [list(range(seat * pages, (seat + 1) * pages)) for seat in range(seats)],
        "scattered": [order[seat * pages : (seat + 1) * pages] for seat in range(seats)],
    }
    for path in files:
        stored = json.loads(path.read_text(encoding="utf-8"))
        leases = [lease for lease in stored if sum(count for _, count in lease) > SMALLEST_CHURNED_PAGES][:seats]
        found[path.stem] = [
            [page for start, count in lease for page in range(start, start + count)][:pages] for lease in leases
        ]
        extents = [len(lease) for lease in leases]
        note(path.stem, "has extents a request: mean", round(sum(extents) / len(extents), 2), "most", max(extents))
    return found


def table_swap_in(
    region: HostRegion, timer: Timer, plain: Plain, layout_files: list[Path], *, ascending: bool, only: list[str]
) -> list[Row]:
    """The table of swap-ins."""
    rows = []
    for row_bytes, groups in ((656, 8), (1152, 5))[: 1 if only else 2]:
        region.number_rows(row_bytes)
        for seats in (128, 32):
            scene = Scene(region, row_bytes, seats, groups, 1)
            scene.ascending = ascending
            for layout, pages in layouts(layout_files, seats).items():
                if only and layout not in only:
                    continue
                scene.place(pages)
                whole = (
                    layout != "scattered"
                    and not only
                    and (row_bytes == 656 or layout != "contiguous" or not layout_files)
                )
                for misses in (0, 8, 32, 102, 205, 410) if whole else (205,):
                    rows.append(swap_in_row(timer, scene, plain, misses, layout))
                    note(json.dumps(rows[-1]))
    return rows


def groups_row(region: HostRegion, timer: Timer, seats: int, misses: int) -> Row:
    """Four layers that share an index: side by side and fetched at once, first layer first, or layer by layer."""
    side, apart = Scene(region, 656, seats, 2, 4), Scene(region, 656, seats, 8, 1)
    side.set(misses)
    apart.set(misses)

    def first_then_rest(blocks: int) -> Callable[[int], None]:
        def step(group: int) -> None:
            side.gather(group, blocks, range(1))
            side.gather(group, blocks, range(1, 4))

        return step

    blocks = (8, 16, 32)
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
    scene, tokens = Scene(region, row_bytes, 128, groups, layers), 16_384
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
                f" to 1 MiB {row['plain_to_1_mib']['us']:7.1f} memcpy {row['memcpy']['us']:7.1f}"
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
    parser.add_argument("--gib", type=int, default=45, help="host memory: 45 holds 128 requests of 64 K tokens")
    parser.add_argument("--layouts", type=Path, nargs="*", default=[], help="extents of the allocator after churn")
    parser.add_argument("--ascending", action="store_true", help="picks by token, as a deterministic top-k gives them")
    parser.add_argument("--private", action="store_true", help="private memory, which may get huge pages")
    parser.add_argument("--only", nargs="+", default=[], help="layouts to measure, 205 misses of 656 B rows alone")
    parser.add_argument("--parts", nargs="+", default=["resolve", "swap_in", "groups", "backup"])
    options = parser.parse_args()
    torch.manual_seed(1)
    timer, result = (
        Timer(),
        {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "gpu": torch.cuda.get_device_name(0),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "command": shlex.join(["python", *sys.argv]),
            "unit": "us, median of graph replays, of one layer (resolve, swap_in, backup) or one group",
        },
    )
    if "resolve" in options.parts:
        result["resolve"] = table_resolve(timer)
    if set(options.parts) & {"swap_in", "groups", "backup"}:
        region = HostRegion(options.gib << 30, private=options.private)
        result["host"] = {"gib": options.gib, "private": options.private, "huge_bytes": HostRegion.huge_bytes()}
        note("registered", result["host"])
        if "swap_in" in options.parts:
            result["swap_in"] = table_swap_in(
                region, timer, Plain(), options.layouts, ascending=options.ascending, only=options.only
            )
        if "groups" in options.parts:
            region.number_rows(656)
            result["groups"] = [groups_row(region, timer, *shape) for shape in ((128, 102), (128, 205), (32, 205))]
        if "backup" in options.parts:
            shapes = ((656, 1, 8), (656, 4, 2), (1152, 1, 5), (1152, 4, 1))
            result["backup"] = [backup_row(region, timer, *shape) for shape in shapes]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(summary(result))


if __name__ == "__main__":
    main()
