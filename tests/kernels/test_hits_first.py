"""Attention in two parts is attention over all picks, and the choice between variants follows their times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hisparse_svc import InvalidInput
from hisparse_svc.engine import (
    MLA_BF16,
    MLA_FP8,
    Choice,
    HotCache,
    RowFormat,
    SwapIn,
    Variants,
    attend_hits_first,
    hits_first,
    load_of,
    swap_in,
)
from hisparse_svc.engine.variants import MAX_LOADS, TRIALS, TRY_EVERY
from hisparse_svc.kernels import (
    PAGE_ROWS,
    Geometry,
    HostRows,
    SplitPicks,
    attend_beside_gather,
    gather_blocks,
    merge_lse,
    resolve,
    sparse_mla_decode,
)
from hisparse_svc.kernels.decode.rows import ROW_FORMATS, pack_rows

GEOMETRY = Geometry(seats=4, hot_rows=256, top_k=100, query_rows=2, context_tokens=2048)


def _resolved(
    device: str, geometry: Geometry = GEOMETRY, *, row_format: RowFormat = MLA_BF16, layers: int = 1
) -> tuple[HotCache, HostRows]:
    torch.manual_seed(0)
    cache = HotCache(geometry, [layers], row_format, device)
    stored = ROW_FORMATS[row_format.row_bytes]
    host = HostRows.allocate(geometry.seats * geometry.map_pages, layers, stored.row_bytes, pinned=device != "cpu")
    host.view.copy_(pack_rows(torch.randn(*host.view.shape[:3], 576), stored))
    cache.rows[0].copy_(pack_rows(torch.randn(*cache.rows[0].shape[:2], 576), stored))
    for seat in range(geometry.seats):
        first = seat * geometry.map_pages
        cache.take_seat(seat, list(range(first, first + geometry.map_pages)), 2000)
    cache.state.newest_from[1] = 1950  # some picks are served from the newest page
    cache.plan.seats[:] = torch.tensor([2, 1, -1, 0])
    return cache, host


def _pick(cache: HotCache, first: int) -> None:
    shape = cache.plan.picks.shape
    window = torch.stack([torch.randperm(150)[: shape[2]] + first for _ in range(shape[0] * shape[1])]).view(shape)
    window[..., -5:] = -1
    cache.plan.picks.copy_(window.int())


LONG = Geometry(seats=4, hot_rows=256, top_k=100, query_rows=2, context_tokens=100_000)
"""Too long for the table in shared memory: resolved with bits."""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("geometry", [GEOMETRY, LONG], ids=["table", "bitmap"])
def test_the_parts_of_a_plan_are_its_hits_and_its_misses(device: str, geometry: Geometry) -> None:
    cache, host = _resolved(device, geometry)
    split = SplitPicks.allocate(geometry, 4, device)
    for first in (1850, 1800, 1800, 1700, 200):
        _pick(cache, first)
        cache.plan.picks[1, 0, 7:9] = cache.plan.picks[1, 0, 6]  # picked three times, and so three times in a part
        swap_in(cache, 0, host, split=split).wait()
        for request, seat in enumerate(cache.plan.seats.tolist()):
            listed = cache.plan.misses[request, : int(cache.plan.counts[request])].tolist()
            missing = {row for _, row in listed}
            if device == "cuda":  # the reference gathers from the plan itself
                pages = cache.state.page_map[seat].tolist()
                looked_up = [[pages[token // PAGE_ROWS] * PAGE_ROWS + token % PAGE_ROWS, row] for token, row in listed]
                assert split.copies[request, : len(listed)].tolist() == looked_up, f"copies of request {request}"
            for query_row in range(2):
                rows = [row for row in cache.plan.rows[request, query_row].tolist() if row >= 0]
                parts = [
                    part.rows[request, query_row, : int(part.counts[request, query_row])].tolist()
                    for part in (split.hits, split.misses)
                ]
                if device == "cuda":
                    rows, parts = sorted(rows), [sorted(part) for part in parts]
                assert parts[0] == [row for row in rows if row not in missing], f"hits of request {request}"
                assert parts[1] == [row for row in rows if row in missing], f"misses of request {request}"
                assert (seat >= 0) == bool(rows)


EVERY_WAY = [
    ("cpu", 8, MLA_FP8, 3),
    *(
        pytest.param("cuda", heads, row_format, layers, marks=pytest.mark.gpu)
        for heads in (8, 16, 32, 64)
        for row_format in (MLA_FP8, MLA_BF16)
        for layers in (1, 3)
    ),
]


@pytest.mark.parametrize(("device", "heads", "row_format", "layers"), EVERY_WAY)
def test_hits_first_is_attention_over_all_picks(device: str, heads: int, row_format: RowFormat, layers: int) -> None:
    cache, host = _resolved(device, row_format=row_format, layers=layers)
    split, sink = SplitPicks.allocate(GEOMETRY, 4, device), torch.randn(heads, device=device)
    side = torch.cuda.Stream() if device != "cpu" else None
    for first in (1850, 1800, 1800, 200):
        _pick(cache, first)
        q = torch.randn((4, 2, heads, 576), device=device).bfloat16()
        found, lse, swap = attend_hits_first(
            cache, 0, host, split, q, scale=192**-0.5, sink=sink, side_stream=side, first_layers=1
        )
        swap.wait()
        expected, expected_lse = sparse_mla_decode(q, cache.rows[0][0], swap.rows, scale=192**-0.5, sink=sink)
        error = (found.double() - expected.double()).norm() / expected.double().norm()
        assert error < 6e-3, f"from token {first}: {error}"
        there = expected_lse > -torch.inf
        assert torch.equal(there, lse > -torch.inf)
        assert (lse - expected_lse)[there].abs().max() < 1e-3
        assert (found[2] == 0).all()


@pytest.mark.parametrize(("sms", "blocks", "left"), [(132, 8, 124), (132, 4, 128), (4, 8, 1), (0, 0, 0)])
def test_attention_leaves_the_gather_its_sms(monkeypatch: pytest.MonkeyPatch, sms: int, blocks: int, left: int) -> None:
    """On a GPU that is not here: each is planned for the SMs that the other does not take."""
    asked = []

    def swap(*arguments: Any, spare_sms: int, **others: Any) -> SwapIn:
        asked.append(spare_sms)
        return replace(swap_in(*arguments, **others), blocks=blocks)

    monkeypatch.setattr(hits_first, "_sms", lambda _: sms)
    monkeypatch.setattr(hits_first, "least_blocks", lambda *_: 20)
    monkeypatch.setattr(hits_first, "swap_in", swap)
    monkeypatch.setattr(hits_first, "attend_call_beside_gather", lambda call, _: asked.append(call.max_sms))
    cache, host = _resolved("cpu")
    _pick(cache, 200)
    split, q = SplitPicks.allocate(GEOMETRY, 4, "cpu"), torch.zeros((4, 2, 8, 576), dtype=torch.bfloat16)
    attend_hits_first(cache, 0, host, split, q, scale=1)
    assert asked == [max(0, sms - 20), left]


def test_the_gather_takes_what_attention_spares() -> None:
    assert [gather_blocks(1000, spare_sms=spare) for spare in (0, 3, 4, 7, 8, 100)] == [8, 8, 4, 4, 8, 8]
    assert [gather_blocks(26_240, spare_sms=spare) for spare in (0, 3, 4, 8, 16, 100)] == [16, 16, 4, 8, 16, 16]


def test_attention_that_takes_all_sms_does_where_nothing_overlaps() -> None:
    cache, host = _resolved("cpu")
    _pick(cache, 200)
    split, q = SplitPicks.allocate(GEOMETRY, 4, "cpu"), torch.randn((4, 2, 8, 576)).bfloat16()
    rows = swap_in(cache, 0, host, split=split).rows
    found = attend_beside_gather(q, cache.rows[0][0], rows, split, scale=0.07, max_sms=100)
    wanted = sparse_mla_decode(q, cache.rows[0][0], rows, scale=0.07)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("empty", ["none", "first", "second", "both"])
@pytest.mark.parametrize("sink", [None, 0.5, float("inf"), float("-inf")])
def test_merging_on_the_gpu_is_merging_in_float64(empty: str, sink: float | None) -> None:
    parts = [(torch.randn((3, 2, 8, 512), device="cuda").bfloat16(), torch.randn((3, 2, 8), device="cuda") * 4)]
    parts.append((torch.randn_like(parts[0][0]), torch.randn_like(parts[0][1])))
    for index, name in enumerate(("first", "second")):
        if empty in {name, "both"}:
            parts[index][1][1] = -torch.inf
            parts[index][0][1] = 0
    sinks = None if sink is None else torch.full((8,), sink, device="cuda")
    out, lse = torch.full_like(parts[0][0], 7), torch.full_like(parts[0][1], 7)
    merge_lse(parts, sink=sinks, out=out, lse=lse)
    wanted, wanted_lse = merge_lse([(x.cpu(), y.cpu()) for x, y in parts], sink=None if sinks is None else sinks.cpu())
    assert torch.allclose(out.cpu().float(), wanted.float(), rtol=1e-2, atol=1e-6)
    assert torch.allclose(lse.cpu(), wanted_lse, rtol=1e-6, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [8, 64])
def test_hits_first_in_a_graph_follows_new_picks(heads: int) -> None:
    geometry = Geometry(seats=4, hot_rows=256, top_k=128, context_tokens=2048)
    cache, host = _resolved("cuda", geometry, layers=2)
    split, side = SplitPicks.allocate(geometry, 4, "cuda"), torch.cuda.Stream()
    q = torch.randn((4, 1, heads, 576), device="cuda").bfloat16()
    out = torch.empty((4, 1, heads, 512), dtype=torch.bfloat16, device="cuda")

    def step() -> None:
        *_, swap = attend_hits_first(cache, 0, host, split, q, scale=0.07, out=out, side_stream=side, first_layers=1)
        swap.wait()

    _pick(cache, 100)
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for first in (100, 140, 500, 1800):
        _pick(cache, first)
        out.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        expected, _ = sparse_mla_decode(q, cache.rows[0][0], cache.plan.rows, scale=0.07)
        assert (out.double() - expected.double()).norm() / expected.double().norm() < 6e-3


def test_parts_of_another_batch_are_refused() -> None:
    cache, _ = _resolved("cpu")
    split = SplitPicks.allocate(GEOMETRY, 3, "cpu")
    with pytest.raises(InvalidInput) as raised:
        resolve(GEOMETRY, cache.words[0], cache.state, cache.plan, split=split)
    fields = [problem.field for problem in raised.value.problems]
    parts = ["hits.rows.shape", "hits.counts.shape", "misses.rows.shape", "misses.counts.shape", "copies.shape"]
    assert fields == parts
    resolve(GEOMETRY, cache.words[0], cache.state, cache.plan.first(2), split=split.first(2))


def test_a_result_of_another_shape_is_refused() -> None:
    part = (torch.zeros((1, 1, 8, 512)), torch.zeros((1, 1, 8)))
    with pytest.raises(InvalidInput) as raised:
        merge_lse([part, part], out=torch.zeros((1, 1, 8, 500)), lse=torch.zeros((1, 8)))
    assert [problem.field for problem in raised.value.problems] == ["out.shape", "lse.shape"]


def _replayed(choice: Choice, load: object, times: dict[str, float], count: int) -> list[str]:
    chosen = []
    for _ in range(count):
        chosen.append(choice.choose(load))
        choice.record(load, chosen[-1], times[chosen[-1]])
    return chosen


def test_overlap_is_off_where_it_loses_and_on_where_it_wins() -> None:
    choice = Choice(["serial", "overlapped"])
    slow = _replayed(choice, "few misses", {"serial": 50, "overlapped": 60}, 100)
    fast = _replayed(choice, "many misses", {"serial": 150, "overlapped": 110}, 100)
    assert slow[2 * TRIALS :] == ["serial"] * (100 - 2 * TRIALS)
    assert fast[2 * TRIALS :] == ["overlapped"] * (100 - 2 * TRIALS)


def test_a_loser_is_tried_again_and_takes_over_when_it_has_become_faster() -> None:
    choice = Choice(["serial", "overlapped"])
    _replayed(choice, 0, {"serial": 50, "overlapped": 60}, 2 * TRIALS)
    chosen = _replayed(choice, 0, {"serial": 50, "overlapped": 30}, 8 * TRY_EVERY)
    assert chosen[: TRY_EVERY - 2 * TRIALS - 1] == ["serial"] * (TRY_EVERY - 2 * TRIALS - 1)
    assert chosen[-200:].count("overlapped") >= 199


def test_a_difference_within_noise_changes_nothing() -> None:
    choice = Choice(["serial", "overlapped"])
    chosen = _replayed(choice, 0, {"serial": 50, "overlapped": 49.5}, 50)
    assert chosen[2 * TRIALS :] == ["serial"] * (50 - 2 * TRIALS)


def test_one_slow_replay_does_not_turn_the_choice() -> None:
    choice = Choice(["serial", "overlapped"])
    _replayed(choice, 0, {"serial": 50, "overlapped": 40}, 40)
    choice.record(0, "overlapped", 4000)
    assert choice.choose(0) == "overlapped"


def test_forgotten_loads_are_learnt_again_and_memory_is_bounded() -> None:
    choice = Choice(["serial", "overlapped"])
    _replayed(choice, "first", {"serial": 50, "overlapped": 40}, 20)
    for load in range(MAX_LOADS):
        choice.choose(load)
    assert choice.favourite("first") == "serial"


def test_loads_are_told_apart_by_batch_and_order_of_misses() -> None:
    assert load_of(32, 0) != load_of(32, 1)
    assert load_of(32, 100) == load_of(32, 127) != load_of(32, 128)
    assert load_of(32, 100) != load_of(64, 100)


def test_what_is_no_load_and_no_variant_is_refused() -> None:
    for misses in (-1, 1.5):
        with pytest.raises(InvalidInput, match="misses is"):
            load_of(32, misses)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="variant is other: must be one of serial, overlapped"):
        Choice(["serial", "overlapped"]).record(0, "other", 40)


def test_variants_replay_what_was_chosen() -> None:
    calls: list[str] = []
    variants = Variants({name: lambda name=name: calls.append(name) for name in ("a", "b")}, on_gpu=False)
    names = [variants.replay(load_of(1, 1)) for _ in range(10)]
    assert calls == names
    assert set(names) == {"a", "b"}


@pytest.mark.parametrize("names", [[], ["a", "a"]])
def test_variants_need_names_of_their_own(names: list[str]) -> None:
    with pytest.raises(InvalidInput, match="at least one variant, each once"):
        Choice(names)
