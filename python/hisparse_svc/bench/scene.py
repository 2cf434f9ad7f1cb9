"""Hot caches and a host pool, set up so that a step misses exactly so many rows, in layers that no cache holds."""

from __future__ import annotations

import ctypes
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from cuda.core import LaunchConfig, Stream, launch

from hisparse_svc.bench.gpu import number_rows, plain_kernel
from hisparse_svc.engine import Geometry, HostRows, HotCache, RowFormat
from hisparse_svc.kernels import PAGE_ROWS, StepPlan, backup, gather, resolve
from hisparse_svc.kernels.words import pack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hisparse_svc.bench.gpu import HostRegion

TOKENS = 65_536
TOP_K = 2048
POOL_PAGES = 128 * TOKENS // PAGE_ROWS


def random_step(
    cache: HotCache, misses: int, lengths: torch.Tensor, tokens_in_all: int = TOKENS
) -> tuple[torch.Tensor, torch.Tensor]:
    """Words of every group and seat, and picks `[group, seat, query row, top_k]` of which `misses` are not hot."""
    geometry, device = cache.geometry, cache.device
    seats, hot = geometry.seats, geometry.hot_rows
    words, picks = torch.empty_like(cache.words), []
    beyond = torch.arange(tokens_in_all - 1, device=device) >= (lengths[:, None] - 1)
    for group in range(len(cache.layer_groups)):
        tokens = (torch.rand((seats, tokens_in_all - 1), device=device) + 2 * beyond).argsort(1)
        slots = torch.rand((seats, hot), device=device).argsort(1)
        words[group] = pack(geometry, slots, tokens[:, :hot])
        hits = torch.rand((seats, hot), device=device).argsort(1)[:, : geometry.top_k - misses]
        chosen = torch.cat([tokens[:, :hot].gather(1, hits), tokens[:, hot : hot + misses]], 1)
        picks.append(chosen.gather(1, torch.rand(chosen.shape, device=device).argsort(1)).int())
    # Query rows pick the same tokens in other orders, as drafts nearly do: their union is what is resolved.
    return words, torch.stack([torch.stack(picks).roll(100 * row, 2) for row in range(geometry.query_rows)], 2)


def geometry_of(seats: int) -> Geometry:
    """What the figures are of: 64 K of context, 2,048 picks, 4,096 hot rows."""
    return Geometry(seats=seats, hot_rows=4096, top_k=TOP_K, context_tokens=TOKENS)


def hosts_of(region: HostRegion, row_bytes: int, groups: int, layers: int) -> list[HostRows]:
    """Cut a region into groups of `layers` layers, side by side."""
    shape = (POOL_PAGES, PAGE_ROWS, layers, row_bytes)
    size = POOL_PAGES * PAGE_ROWS * layers * row_bytes
    return [HostRows(region.bytes[at * size : (at + 1) * size].view(shape)) for at in range(groups)]


def number_hosts(hosts: Sequence[HostRows]) -> None:
    """Write its number to every row, as `Scene.check` expects it; groups are equally large."""
    for group, host in enumerate(hosts):
        number_rows(host.view, group * host.view[..., 0].numel())


class Scene:
    """Groups of as many layers each, side by side; every group has its own words, plan, host and hot rows."""

    def __init__(self, geometry: Geometry, hosts: Sequence[HostRows], device: str = "cuda") -> None:
        self.geometry, self.hosts = geometry, list(hosts)
        self.groups, self.layers, self.row_bytes = len(hosts), hosts[0].layers, hosts[0].row_bytes
        self.ascending = False
        self.cache = HotCache(geometry, [self.layers] * self.groups, RowFormat("rows", self.row_bytes), device)
        self.plans = [StepPlan.allocate(geometry, device) for _ in range(self.groups)]
        for plan in self.plans:
            plan.seats[:] = torch.randperm(geometry.seats, dtype=torch.int32)
        pages = geometry.map_pages
        self.place([list(range(seat * pages, (seat + 1) * pages)) for seat in range(geometry.seats)])

    def place(self, pages: Sequence[Sequence[int]]) -> None:
        """Give every seat its host pages; a seat's request fills them."""
        state = self.cache.state
        state.page_map.fill_(-1)
        for seat, mine in enumerate(pages):
            state.page_map[seat, : len(mine)] = torch.tensor(mine, dtype=torch.int32)
            state.lengths[seat] = len(mine) * PAGE_ROWS
        state.newest_from[:] = state.lengths.int() - 1

    def set(self, misses: int) -> None:
        """Set up words and picks, and resolve once."""
        tokens = self.geometry.context_tokens
        self._words, picks = random_step(self.cache, misses, self.cache.state.lengths, tokens)
        picks = picks.sort(3).values if self.ascending else picks
        for group, plan in enumerate(self.plans):
            plan.picks[:] = picks[group][plan.seats.long()]
        self.reset()
        self.each(self.resolve)()
        for plan in self.plans:
            if not bool((plan.counts == misses).all()):
                raise AssertionError(f"{misses} misses were set up, {plan.counts.tolist()[:4]} … found")

    def missing(self) -> float:
        """Missing rows of a request, as the last resolve of each group counted them."""
        return float(torch.stack([plan.counts for plan in self.plans]).float().mean())

    def reset(self) -> None:
        """Undo what resolving did."""
        self.cache.words.copy_(self._words)

    def resolve(self, group: int) -> None:
        """Resolve one group."""
        resolve(self.geometry, self.cache.words[group], self.cache.state, self.plans[group])

    def gather(self, group: int, blocks: int, layers: range | None = None) -> None:
        """Gather one group."""
        cache, plan = self.cache, self.plans[group]
        gather(self.geometry, self.hosts[group], cache.rows[group], cache.state, plan, layers=layers, blocks=blocks)

    def backup(self, group: int) -> None:
        """Back one step of one group up."""
        backup(self.geometry, self.hosts[group], self.cache.rows[group], self.cache.state, self.plans[group])

    def each(self, *steps: Callable[[int], None]) -> Callable[[], None]:
        """Work that does these steps for every group in turn."""

        def work() -> None:
            for group in range(self.groups):
                for step in steps:
                    step(group)

        return work

    def listed(self, group: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Host row and hot row of every miss of a group, as listed."""
        plan, state = self.plans[group], self.cache.state
        used = torch.arange(self.geometry.picks, device=self.cache.device)[None] < plan.counts[:, None]
        token, row = plan.misses[..., 0][used].long(), plan.misses[..., 1][used].long()
        page = state.page_map.long()[row // self.geometry.padded_rows, token // PAGE_ROWS]
        return page * PAGE_ROWS + token % PAGE_ROWS, row

    def check(self) -> None:
        """Demand that every row fetched is the row that was missed, in every layer."""
        for group in range(self.groups):
            host_row, hot_row = self.listed(group)
            for layer in range(self.layers):
                found = self.cache.rows[group][layer][hot_row].view(torch.int64)
                expected = (group * self.hosts[group].pages * PAGE_ROWS + host_row) * self.layers + layer
                if not (torch.equal(found[:, 0], expected) and torch.equal(found[:, -1], expected)):
                    raise AssertionError(f"group {group}, layer {layer}: a row is not the one that was missed")

    def digest(self) -> str:
        """What was fetched, and where to: the same on every rank that missed the same."""
        found = hashlib.sha256()
        for group in range(self.groups):
            host_row, hot_row = self.listed(group)
            for part in (host_row, hot_row, self.cache.rows[group][:, hot_row]):
                found.update(part.contiguous().cpu().numpy().tobytes())
        return found.hexdigest()


class Plain:
    """The yardstick: the same rows by a plain kernel, in address order (`plain_gather.cu`)."""

    BLOCKS = (8, 12, 16, 24, 32, 64)

    def __init__(self) -> None:
        self._kernel = plain_kernel(Path(__file__).parent / "plain_gather.cu")

    def of(self, scene: Scene, *, window_rows: int = 0) -> Callable[[int], Callable[[int], None]]:
        """Give, for a number of blocks, the step that gathers a group; `window_rows` folds the hot rows into so few."""
        lists = []
        for group in range(scene.groups):
            host_row, hot_row = scene.listed(group)
            order = host_row.argsort()
            target = hot_row[order] % window_rows if window_rows else hot_row[order]
            lists.append((host_row[order].contiguous(), target.int().contiguous()))

        def with_blocks(blocks: int) -> Callable[[int], None]:
            def step(group: int) -> None:
                order, rows = lists[group]
                launch(
                    Stream.from_handle(torch.cuda.current_stream().cuda_stream),
                    LaunchConfig(grid=blocks, block=1024),
                    self._kernel,
                    scene.hosts[group].view.data_ptr(),
                    scene.cache.rows[group].data_ptr(),
                    order.data_ptr(),
                    rows.data_ptr(),
                    ctypes.c_int32(len(order)),
                    ctypes.c_int32(scene.row_bytes // 16),
                    ctypes.c_int32(scene.hosts[group].row_pitch),
                )

            return step

        return with_blocks
