"""Kernels that run side by side wait for what they read, however late and in whatever order it comes."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hisparse_svc.engine import MLA_BF16, MLA_FP8, HotCache, RowFormat
from hisparse_svc.kernels import (
    Geometry,
    HostRows,
    SplitPicks,
    StepPlan,
    attend_beside_gather,
    cuda,
    sparse_mla_decode,
)
from hisparse_svc.kernels.cuda import decode
from hisparse_svc.kernels.cuda.compile import inlined_source
from hisparse_svc.kernels.cuda.decode_shapes import block_shapes
from hisparse_svc.kernels.decode.call import make_call
from hisparse_svc.kernels.decode.rows import ROW_FORMATS, pack_rows
from hisparse_svc.kernels.split import PickPart
from hisparse_svc.kernels.words import pack, slots_of, tokens_of

from tests.kernels.decode_cases import make

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

pytestmark = pytest.mark.gpu

REQUESTS, SCALE, NAN_BYTE = 12, 192**-0.5, 0xFF
GEOMETRY = Geometry(seats=REQUESTS, hot_rows=512, top_k=256, context_tokens=4096)


def _kernels() -> dict[str, Callable[..., None]]:
    """The stand-ins, each a function of blocks and arguments."""
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, Stream, launch  # noqa: PLC0415 - GPU only

    Device(0).set_current()
    text = inlined_source("common.cuh") + "\n" + (Path(__file__).parent / "slow_kernels.cu").read_text(encoding="utf-8")
    code = Program(text, "c++", ProgramOptions(arch="sm_90", std="c++17")).compile("cubin")

    def launcher(name: str) -> Callable[..., None]:
        kernel = code.get_kernel(name)

        def run(blocks: int, *arguments: Tensor | int) -> None:
            given = [x.data_ptr() if isinstance(x, torch.Tensor) else ctypes.c_int32(x) for x in arguments]
            config = LaunchConfig(grid=blocks, block=256)
            launch(Stream.from_handle(torch.cuda.current_stream().cuda_stream), config, kernel, *given)

        return run

    return {name: launcher(name) for name in ("slow_resolve", "slow_gather")}


@dataclass
class _Step:
    """A step that was resolved once, which says what it is to be resolved to; requests miss from none to all picks."""

    cache: HotCache
    host: HostRows
    split: SplitPicks
    q: Tensor
    expected: Tensor

    @property
    def late_rows(self) -> Tensor:
        """Hot rows of all misses, request by request."""
        listed = self.cache.plan.misses[..., 1]
        used = torch.arange(listed.shape[1], device="cuda")[None] < self.cache.plan.counts[:, None]
        return listed[used].long()

    def poison(self) -> None:
        """Make a miss that is read too early show."""
        self.cache.rows[0][0][self.late_rows] = NAN_BYTE

    def attend(self, split: SplitPicks | None = None) -> Tensor:
        """Attention beside the gather in front of it."""
        hot, plan = self.cache.rows[0][0], self.cache.plan
        out, _ = attend_beside_gather(self.q, hot, plan.rows, split or self.split, scale=SCALE, max_sms=124)
        return out


def _step(seed: int, heads: int, row_format: RowFormat) -> _Step:
    torch.manual_seed(seed)
    stored, geometry = ROW_FORMATS[row_format.row_bytes], GEOMETRY
    cache = HotCache(geometry, [1], row_format, "cuda")
    host = HostRows.allocate(geometry.seats * geometry.map_pages, 1, stored.row_bytes, pinned=True)
    host.view.copy_(pack_rows(torch.randn(*host.view.shape[:3], 576), stored))
    pages = torch.randperm(host.pages).view(geometry.seats, -1)
    counts = [0, 256, *torch.randint(0, 257, (REQUESTS - 2,)).tolist()]
    for seat in range(geometry.seats):
        cache.take_seat(seat, pages[seat].tolist(), 4096)
        tokens = torch.randperm(4000)
        cache.words[0][seat] = pack(geometry, torch.randperm(512), tokens[:512]).cuda()
        cache.rows[0][0][seat * geometry.padded_rows :][:512] = pack_rows(torch.randn(512, 576), stored).cuda()
        picks = torch.cat([tokens[: 256 - counts[seat]], tokens[512 : 512 + counts[seat]]])
        cache.plan.picks[seat, 0] = picks[torch.randperm(256)].int().cuda()
    order = torch.randperm(REQUESTS)
    cache.plan.seats.copy_(order)
    cache.plan.picks.copy_(cache.plan.picks[order.cuda()].clone())
    cache.plan.seats[3] = -1  # a padded request
    split = SplitPicks.allocate(geometry, REQUESTS, "cuda")
    cuda.resolve(geometry, cache.words[0], cache.state, cache.plan, split=split)
    cuda.gather(geometry, host, cache.rows[0], cache.state, cache.plan, blocks=8)
    q = torch.randn((REQUESTS, 1, heads, 576), device="cuda").bfloat16()
    expected, _ = sparse_mla_decode(q, cache.rows[0][0], cache.plan.rows, scale=SCALE)
    return _Step(cache, host, split, q, expected)


def _same(found: Tensor, expected: Tensor) -> bool:
    return float((found.double() - expected.double()).norm() / expected.double().norm()) < 6e-3


def _delays(count: int, most_us: int) -> Tensor:
    """Many short ones and a few long ones."""
    return (torch.rand(count, device="cuda") ** 4 * most_us * 1000).int()


SHAPES = [(8, MLA_FP8), (16, MLA_FP8), (32, MLA_FP8), (64, MLA_FP8), (8, MLA_BF16), (64, MLA_BF16)]


@pytest.mark.parametrize(("heads", "row_format"), SHAPES)
def test_attention_waits_for_rows_that_come_late_and_in_any_order(heads: int, row_format: RowFormat) -> None:
    step, slow = _step(1, heads, row_format), _kernels()["slow_gather"]
    hot, late_rows = step.cache.rows[0][0], step.late_rows
    arrived, first = hot[late_rows].clone(), None
    for seed in range(8):
        torch.manual_seed(seed)
        order = torch.randperm(len(arrived), device="cuda")
        rows, to, delays = arrived[order].contiguous(), late_rows[order].int(), _delays(len(order), 20 * (seed % 3))
        step.poison()
        slow(4, delays, rows, hot, to, len(order), hot.shape[1] // 16)
        found = step.attend()
        assert _same(found, step.expected), f"seed {seed}"
        first = found if first is None else first
        assert torch.equal(found, first), f"seed {seed}: other bits than before"


@pytest.mark.parametrize("kind", ["fp8", "bf16"])
def test_attention_that_starts_early_waits_for_whatever_the_kernel_in_front_writes(kind: str) -> None:
    slow = _kernels()["slow_gather"]
    for shape in block_shapes(kind):
        case = make(kind, shape.heads, batch=4, top_k=512, rows=1024, seed=shape.heads).to("cuda")
        case = replace(case, counts=torch.tensor([[512], [300], [17], [500]], dtype=torch.int32, device="cuda"))
        call = make_call(**case.arguments(), scale=SCALE, out=None, lse=None, max_sms=0)
        for splits in (1, 3):
            decode.sparse_mla_decode(call, shape=shape, splits=splits)
            expected = call.out.clone()
            for name in ("rows", "q", "picks", "counts"):
                written = getattr(call, name).view(torch.uint8)
                pieces = written.view(len(written) if name == "rows" else 4 if name != "counts" else 1, -1)
                kept = pieces.clone()
                for most_us in (0, 20, 40):
                    pieces.fill_(0 if name == "counts" else NAN_BYTE)
                    call.out.fill_(torch.nan)
                    to = torch.randperm(len(pieces), device="cuda").int()
                    slow(
                        8,
                        _delays(len(pieces), most_us),
                        kept[to.long()],
                        pieces,
                        to,
                        len(pieces),
                        pieces.shape[1] // 16,
                    )
                    decode.sparse_mla_decode(call, shape=shape, splits=splits)
                    assert torch.equal(call.out, expected), (
                        f"{shape.source} {shape.heads}/{splits}: {name}, {most_us} us"
                    )


@pytest.mark.parametrize("blocks", [1, 4, 8, 16])
def test_gather_and_attention_wait_for_requests_that_are_resolved_late(blocks: int) -> None:
    step, slow = _step(2, 8, MLA_FP8), _kernels()["slow_resolve"]
    cache, split, plan = step.cache, step.split, step.cache.plan
    parts = (split.copies, split.hits.rows, split.misses.rows)
    counts = torch.stack([plan.counts, split.hits.counts[:, 0], split.misses.counts[:, 0]])
    found = torch.cat([*(part.reshape(REQUESTS, -1) for part in parts), counts.T], dim=1).contiguous()
    given = StepPlan(plan.seats, plan.picks, plan.rows, plan.misses, counts[0])
    late = SplitPicks(
        PickPart(split.hits.rows, counts[1, :, None]), PickPart(split.misses.rows, counts[2, :, None]), split.copies
    )
    rows = step.late_rows
    arrived, first = cache.rows[0][0][rows].clone(), None
    for seed in range(8):
        torch.manual_seed(seed)
        delays = _delays(REQUESTS, 60 * (seed % 3))
        step.poison()
        for part in (*parts, counts):
            part.zero_()
        slow(REQUESTS, delays, found, *parts, counts, GEOMETRY.top_k, REQUESTS)
        cuda.gather(GEOMETRY, step.host, cache.rows[0], cache.state, given, blocks=blocks, between=late)
        out = step.attend(late)
        assert torch.equal(cache.rows[0][0][rows], arrived), f"seed {seed}: rows"
        assert _same(out, step.expected), f"seed {seed}: attention"
        first = out if first is None else first
        assert torch.equal(out, first), f"seed {seed}: other bits than before"


def test_steps_one_after_the_other_take_nothing_of_the_step_before() -> None:
    """The same parts serve every group of layers in turn, as in a session."""
    geometry, groups = Geometry(seats=40, hot_rows=512, top_k=256, context_tokens=4096), 3
    cache = HotCache(geometry, [1] * groups, MLA_FP8, "cuda")
    stored = ROW_FORMATS[MLA_FP8.row_bytes]
    host = HostRows.allocate(geometry.seats * geometry.map_pages, 1, stored.row_bytes, pinned=True)
    host.view.copy_(pack_rows(torch.randn(*host.view.shape[:3], 576), stored))
    pages = torch.randperm(host.pages).view(geometry.seats, -1)
    for seat in range(geometry.seats):
        cache.take_seat(seat, pages[seat].tolist(), 4096)
    cache.plan.seats.copy_(torch.randperm(geometry.seats))
    split = SplitPicks.allocate(geometry, geometry.seats, "cuda")
    q = torch.randn((geometry.seats, 1, 8, 576), device="cuda").bfloat16()
    outs = torch.zeros((groups, geometry.seats, 1, 8, 512), dtype=torch.bfloat16, device="cuda")
    rows = torch.zeros((groups, *cache.plan.rows.shape), dtype=torch.int32, device="cuda")

    def steps() -> None:
        for group in range(groups):
            cuda.resolve(geometry, cache.words[group], cache.state, cache.plan, split=split)
            cuda.gather(geometry, host, cache.rows[group], cache.state, cache.plan, blocks=8, between=split)
            hot = cache.rows[group][0]
            attend_beside_gather(q, hot, cache.plan.rows, split, scale=SCALE, max_sms=124, out=outs[group])
            rows[group].copy_(cache.plan.rows)

    graph: Any = None
    for step in range(30):
        torch.manual_seed(step)
        window = torch.stack([torch.randperm(300)[:256] for _ in range(geometry.seats)]) + 90 * step
        cache.plan.picks[:, 0] = window.int().cuda()
        for group in range(groups):  # rows that are about to be replaced hold nothing that may be read
            held = torch.isin(tokens_of(geometry, cache.words[group]), window.cuda())
            _poison_slots(cache, group, ~held)
        if graph is None:
            steps()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                steps()
            continue
        graph.replay()
        for group in range(groups):
            expected, _ = sparse_mla_decode(q, cache.rows[group][0], rows[group], scale=SCALE)
            assert _same(outs[group], expected), f"step {step}, group {group}"


def _poison_slots(cache: HotCache, group: int, stale: Tensor) -> None:
    """Fill the rows of slots that hold no token that is about to be picked; windows move on, so none is ever again."""
    slots = slots_of(cache.geometry, cache.words[group])
    first = torch.arange(cache.geometry.seats, device=cache.device)[:, None] * cache.geometry.padded_rows
    cache.rows[group][0][(slots + first)[stale]] = NAN_BYTE
