"""The table of swap-ins: what one layer's step takes, beside the machine's memcpy and the best ordered gather.

::

    compile ── check (conformance, each row fetched) ── time: resolve │ gather │ both │ plain over 8–64 blocks │ memcpy

Every figure is the median of graph replays over layers that no cache holds. `plain` is a kernel that copies the same
rows sorted by host address over all requests, at its best number of blocks: sorting them is not in its time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hisparse_svc import testing
from hisparse_svc.bench.gpu import HostRegion, Timer, machine
from hisparse_svc.bench.scene import POOL_PAGES, TOKENS, Plain, Scene, geometry_of, hosts_of
from hisparse_svc.kernels import PAGE_ROWS, gather_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "LAYOUTS",
    "UNIT",
    "Row",
    "Wanted",
    "best_of",
    "conform",
    "layer_bytes",
    "layouts",
    "measure",
    "swap_in_row",
]

Row = dict[str, Any]

LAYOUTS = Path(__file__).parents[1] / "data" / "layouts"
"""Extents of the page allocator after churn: `make bench-layouts` writes them."""

UNIT = "us, median of graph replays, of one layer"
GATHER_BLOCKS = (8, 16, 32)
QUICK_CHECKS = ("random_steps", "recency_decides", "duplicates_share_a_row", "layers_that_share_an_index")
SMALLEST_CHURNED_PAGES = 128
MOST_GROUPS = 8


@dataclass(frozen=True)
class Wanted:
    """What to measure.

    Attributes:
        host_bytes: Host memory to take; as many layers as fit are gone through in turn, at most eight.
        requests: Batches.
        misses: Missing rows of each request.
        row_bytes: Sizes of rows.
        layouts: Where pages lie: `contiguous`, `scattered`, and the stored layouts by name; all where none is named.
        ascending: Picks by token, as a deterministic top-k gives them, instead of shuffled.
    """

    host_bytes: int = 45 << 30
    requests: tuple[int, ...] = (128, 32)
    misses: tuple[int, ...] = (0, 8, 32, 102, 205, 410)
    row_bytes: tuple[int, ...] = (656, 1152)
    layouts: tuple[str, ...] = ()
    ascending: bool = False


def layer_bytes(row_bytes: int) -> int:
    """Host memory of one layer of 128 requests of 65,536 tokens."""
    return POOL_PAGES * PAGE_ROWS * row_bytes


def best_of(timer: Timer, scene: Scene, step: Callable[[int], Callable[[int], None]], blocks: Sequence[int]) -> Row:
    """The best time over numbers of blocks, and the time of each."""
    found = {count: timer(scene.each(step(count)), scene.groups) for count in blocks}
    best = min(found, key=lambda count: found[count]["us"])
    return {**found[best], "blocks": best, "by_blocks": {count: row["us"] for count, row in found.items()}}


def swap_in_row(timer: Timer, scene: Scene, plain: Plain, misses: int, layout: str) -> Row:
    """Resolve and gather of one layer, and the yardsticks on the same rows; what was copied is checked row by row."""
    scene.set(misses)
    requests, size = scene.geometry.seats, scene.geometry.seats * misses * scene.row_bytes
    row: Row = {"row_bytes": scene.row_bytes, "requests": requests, "misses": misses, "layout": layout}
    row["picks"] = "ascending" if scene.ascending else "shuffled"
    row["resolve"] = timer(scene.each(scene.resolve), scene.groups, scene.reset)
    blocks = gather_blocks(requests * misses)
    if misses:
        scene.set(misses)
        row["gather"] = best_of(
            timer, scene, lambda count: partial(scene.gather, blocks=count), sorted({*GATHER_BLOCKS, blocks})
        )
        scene.check()
        row["plain"] = best_of(timer, scene, plain.of(scene), Plain.BLOCKS)
        target = torch.empty(size, dtype=torch.uint8, device="cuda")
        sources = [host.view.flatten()[:size] for host in scene.hosts]

        def copy(group: int) -> None:
            target.copy_(sources[group], non_blocking=True)

        row["memcpy"] = timer(scene.each(copy), scene.groups)
        row["gather_default"] = {"us": row["gather"]["by_blocks"][blocks], "blocks": blocks}
        row["gather_gb_s"] = round(size / row["gather_default"]["us"] / 1e3, 1)
        row["memcpy_over_gather"] = round(row["memcpy"]["us"] / row["gather_default"]["us"], 3)
        row["plain_over_gather"] = round(row["plain"]["us"] / row["gather_default"]["us"], 3)
    both = scene.each(scene.resolve, partial(scene.gather, blocks=blocks))
    row["swap_in"] = timer(both, scene.groups, scene.reset)
    scene.check()
    if misses:
        row["swap_in_over_plain"] = round(row["swap_in"]["us"] / row["plain"]["us"], 3)
    return row


def layouts(seats: int, names: Sequence[str] = (), files: Sequence[Path] = ()) -> dict[str, list[list[int]]]:
    """Host pages of each seat: one extent, anywhere, and as the allocator left them after churn."""
    pages = TOKENS // PAGE_ROWS
    order = torch.randperm(POOL_PAGES).tolist()
    found = {
        "contiguous": [list(range(seat * pages, (seat + 1) * pages)) for seat in range(seats)],
        "scattered": [order[seat * pages : (seat + 1) * pages] for seat in range(seats)],
    }
    for path in files or sorted(LAYOUTS.glob("*.json")):
        stored = json.loads(path.read_text(encoding="utf-8"))
        leases = [lease for lease in stored if sum(count for _, count in lease) > SMALLEST_CHURNED_PAGES][:seats]
        found[path.stem] = [
            [page for start, count in lease for page in range(start, start + count)][:pages] for lease in leases
        ]
    return {name: pages for name, pages in found.items() if not names or name in names}


def conform(device: str = "cuda") -> int:
    """Run the quick part of the conformance suite; give the number of checks.

    Raises:
        NonConforming: The kernels do not do on this machine what the reference does.
    """
    return testing.run(partial(testing.HotCacheSubject, device=device), checks=QUICK_CHECKS)


def measure(wanted: Wanted, say: Callable[[str], None]) -> Row:
    """Check, then time everything wanted.

    Args:
        wanted: What.
        say: Told what has been done, as it goes.

    Returns:
        The document that is kept.
    """
    document = machine() | {"unit": UNIT}
    document["checks"] = conform()
    say(f"{document['checks']} checks passed on {document['gpu']}")
    region, timer, plain = HostRegion(wanted.host_bytes), Timer(), Plain()
    document["host"] = {"bytes": wanted.host_bytes, "huge_bytes": HostRegion.huge_bytes()}
    say(f"{wanted.host_bytes / 2**30:.1f} GiB of host memory registered")
    document["swap_in"] = []
    for row_bytes in wanted.row_bytes:
        region.number_rows(row_bytes)
        for seats in wanted.requests:
            groups = min(MOST_GROUPS, wanted.host_bytes // layer_bytes(row_bytes))
            scene = Scene(geometry_of(seats), hosts_of(region, row_bytes, groups, 1))
            scene.ascending = wanted.ascending
            for layout, pages in layouts(seats, wanted.layouts).items():
                scene.place(pages)
                for misses in wanted.misses:
                    document["swap_in"].append(swap_in_row(timer, scene, plain, misses, layout))
                say(f"{row_bytes} B rows, {seats} requests, pages {layout}")
    return document
