"""Calls that are wrong in ways that no kernel would notice: they are refused before anything is written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hisparse_svc.engine import (
    MLA_BF16,
    HotCache,
    RowFormat,
    attend_hits_first,
    back_up,
    park_seat,
    swap_in,
    unpark_seat,
)
from hisparse_svc.kernels import (
    Geometry,
    HostRows,
    IndexKeys,
    SeatState,
    SplitPicks,
    StepPlan,
    append,
    append_index_keys,
    attend_beside_gather,
    backup,
    backup_pages,
    gather,
    index_top_k,
    indexer,
    merge_lse,
    quantise,
    resolve,
    sparse_mla_decode,
    write_index_keys,
)

from tests.kernels.decode_cases import SCALE, make
from tests.kernels.index_cases import index_case
from tests.kernels.refused import refused_fields

GEOMETRY = Geometry(seats=2, hot_rows=64, top_k=16, context_tokens=512)


def _decode(**changed: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return sparse_mla_decode(**(make("bf16", 8, top_k=64).arguments() | {"scale": SCALE} | changed))


def _cache() -> tuple[HotCache, HostRows]:
    cache, host = HotCache(GEOMETRY, [1], MLA_BF16, "cpu"), HostRows.allocate(8, 1, 1152)
    host.view.view(torch.bfloat16).normal_()
    cache.rows[0].zero_()
    cache.take_seat(0, [3, 4], 100)
    cache.plan.seats[0] = 0
    cache.plan.picks[0, 0] = torch.arange(16)
    return cache, host


def test_arguments_of_another_type_are_named_by_every_call() -> None:
    cache, host = _cache()
    state, plan, hot, words = cache.state, cache.plan, cache.rows[0], cache.words[0]
    keys, new = IndexKeys.allocate(2, "cpu"), torch.zeros((2, 1, 128))
    rows, pages = torch.zeros((1, 3, 1152), dtype=torch.uint8), torch.tensor([0], dtype=torch.int32)
    none: Any = None
    q = torch.zeros((2, 1, 8, 576), dtype=torch.bfloat16)
    split = SplitPicks.allocate(GEOMETRY, 2, "cpu")
    for call, wrong in (
        (lambda: resolve(none, none, none, none), ["words", "geometry", "state", "plan"]),
        (lambda: resolve(GEOMETRY, words, state, plan, split=3), ["split"]),  # type: ignore[arg-type]
        (lambda: gather(GEOMETRY, none, hot, state, plan, layers=[0], blocks=8.0), ["host", "layers", "blocks"]),  # type: ignore[arg-type]
        (lambda: append(GEOMETRY, none, state, plan, none), ["hot", "rows"]),
        (lambda: backup(GEOMETRY, none, hot, state, plan, query_rows="1"), ["host", "query_rows"]),  # type: ignore[arg-type]
        (lambda: backup_pages(GEOMETRY, host, rows, [0], first_token=1.5), ["pages", "first_token"]),  # type: ignore[arg-type]
        (lambda: write_index_keys(none, new[0], pages, first_token=none), ["keys", "first_token"]),
        (lambda: append_index_keys(GEOMETRY, keys, state, plan, none), ["values"]),
        (lambda: append_index_keys(GEOMETRY, keys, state, plan, new, page_map=[]), ["page_map"]),  # type: ignore[arg-type]
        (lambda: index_top_k(GEOMETRY, state, plan, none), ["logits"]),
        (lambda: indexer(GEOMETRY, keys, state, plan, none, weights=none, logits=none), ["q", "weights", "logits"]),
        (lambda: quantise(none), ["values"]),
        (lambda: IndexKeys(none), ["keys"]),
        (lambda: HostRows(none), ["host"]),
        (lambda: IndexKeys.allocate(2, "cpu", "fp8"), ["stored"]),  # type: ignore[arg-type]
        (lambda: SeatState.allocate(none, "cpu"), ["geometry"]),
        (lambda: swap_in(none, 0.0, none, 1.5), ["cache", "host", "group", "batch"]),  # type: ignore[arg-type]
        (lambda: attend_hits_first(cache, 0, host, none, none, scale=1), ["q", "split"]),
        (lambda: attend_hits_first(cache, 5, host, split, q, scale=1), ["group"]),
        (lambda: merge_lse(none), ["parts"]),
        (lambda: merge_lse([none]), ["parts"]),
        (lambda: merge_lse([(q, none)], sink=1.0), ["parts[0].lse", "sink"]),  # type: ignore[arg-type]
        (lambda: _decode(max_sms=1.5, scale=True), ["scale", "max_sms"]),
        (lambda: _decode(backend=["cuda"]), ["backend"]),
        (lambda: HotCache(GEOMETRY, [1], "bf16", "cpu"), ["row_format"]),  # type: ignore[arg-type]
        (lambda: HotCache(GEOMETRY, [1.5], MLA_BF16, "cpu"), ["layer_groups"]),  # type: ignore[list-item]
        (lambda: RowFormat("bf16", 1152.0), ["row_bytes"]),  # type: ignore[arg-type]
    ):
        assert refused_fields(call) == wrong


@pytest.mark.parametrize("scale", [0, -1.0, float("nan"), float("inf"), 1e39, 1e-39, 10**400])
def test_a_scale_that_float32_does_not_hold_is_refused(scale: float) -> None:
    assert refused_fields(lambda: _decode(scale=scale)) == ["scale"]


def test_tensors_that_ask_for_gradients_are_refused_where_these_are_recorded() -> None:
    sink = torch.nn.Parameter(torch.zeros(8))
    assert refused_fields(lambda: _decode(sink=sink)) == ["sink.requires_grad"]
    case = index_case([100], heads=4)
    weights = case.weights.clone().requires_grad_()
    call = lambda: indexer(*case.arguments, weights=weights, logits=case.logits)  # noqa: E731
    assert refused_fields(call) == ["weights.requires_grad"]
    part = (torch.zeros(1, 1, 8, 512, requires_grad=True), torch.zeros(1, 1, 8))
    assert refused_fields(lambda: merge_lse([part])) == ["parts[0].out.requires_grad"]
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            assert not _decode(sink=sink)[0].requires_grad


def test_tensors_of_other_devices_and_layouts_are_refused() -> None:
    case = make("bf16", 8, top_k=64).to("meta")
    assert refused_fields(lambda: sparse_mla_decode(**case.arguments(), scale=SCALE)) == ["device"]
    assert refused_fields(lambda: _decode(q=make("bf16", 8, top_k=64).q.to_sparse())) == ["q.layout"]
    sparse = torch.zeros((1, 64, 1, 16), dtype=torch.uint8).to_sparse()
    assert refused_fields(lambda: HostRows(sparse)) == ["host.layout"]


def test_tensors_between_the_steps_of_wide_loads_are_refused() -> None:
    """Kernels read and write these in pieces of 8 or 16 bytes: elsewhere it would be a fault that ends the context."""
    spare = torch.zeros(2 * 8 * 512 + 8, dtype=torch.bfloat16)
    assert refused_fields(lambda: _decode(out=spare[1:-7].view(2, 1, 8, 512))) == ["out.address"]
    part = spare[4:-4].view(2, 1, 8, 512)
    assert refused_fields(lambda: merge_lse([(part, torch.zeros(2, 1, 8))])) == ["parts[0].out.address"]
    case = index_case([100], heads=4)
    q = torch.zeros(4 * 128 + 8, dtype=torch.uint8)[8:].view(torch.float8_e4m3fn).view(1, 1, 4, 128)
    call = lambda: indexer(*case.arguments[:4], q, weights=case.weights, logits=case.logits)  # noqa: E731
    assert refused_fields(call) == ["q.address"]
    values = torch.zeros(128 + 2)[2:].view(1, 1, 128)
    assert refused_fields(lambda: append_index_keys(*case.arguments[:4], values)) == ["values.address"]
    cache, _ = _cache()
    shifted = torch.zeros(2 * 16 * 2 + 1, dtype=torch.int32)[1:].view(2, 16, 2)
    plan = StepPlan(cache.plan.seats, cache.plan.picks, cache.plan.rows, shifted, cache.plan.counts)
    assert refused_fields(lambda: resolve(GEOMETRY, cache.words[0], cache.state, plan)) == ["plan.misses.address"]


def test_outputs_in_the_memory_of_inputs_are_refused() -> None:
    case = make("bf16", 8, top_k=64)
    rows, sink = case.rows.clone(), torch.zeros(16)
    inside = rows.view(-1)[: 2 * 8 * 512 * 2].view(torch.bfloat16).view(2, 1, 8, 512)
    assert refused_fields(lambda: _decode(rows=rows, out=inside)) == ["out"]
    assert refused_fields(lambda: _decode(sink=sink[:8], lse=sink.view(2, 1, 8))) == ["lse"]
    both = torch.zeros(2, 1, 8, 512)
    lse = both.view(-1)[:16].view(2, 1, 8)
    assert refused_fields(lambda: _decode(q=case.q.float(), out=both, lse=lse)) == ["lse"]
    memory = torch.zeros(3, 1, 8, 512)
    parts = [(memory[:2], torch.zeros(2, 1, 8))]
    assert refused_fields(lambda: merge_lse(parts, out=memory[1:])) == ["out"]
    merge_lse(parts, out=memory[:2], lse=parts[0][1])  # a part's own


def test_what_was_made_under_inference_mode_is_not_written_outside_of_it() -> None:
    with torch.inference_mode():
        out = torch.zeros(2, 1, 8, 512, dtype=torch.bfloat16)
        _decode(out=out)
    assert refused_fields(lambda: _decode(out=out)) == ["out"]


def test_a_cache_made_under_inference_mode_serves_outside_of_it() -> None:
    with torch.inference_mode():
        cache, host = _cache()
        split, keys = SplitPicks.allocate(GEOMETRY, 2, "cpu"), IndexKeys.allocate(2, "cpu")
    cache.take_seat(0, [3, 4], 100)
    assert swap_in(cache, 0, host, split=split).counts.tolist() == [16, 0]
    write_index_keys(keys, torch.zeros(5, 128), torch.tensor([1], dtype=torch.int32))
    backup(GEOMETRY, host, cache.rows[0], cache.state, cache.plan)


def test_autocast_changes_no_bit() -> None:
    case = index_case([100, 70], heads=5)
    plain = [*_decode(), *_decode(q=make("bf16", 8, top_k=64).q.float())]
    case.picks_by()
    picks = case.plan.picks.clone()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = [*_decode(), *_decode(q=make("bf16", 8, top_k=64).q.float())]
        case.picks_by()
    assert all(torch.equal(one, other) for one, other in zip(plain, cast, strict=True))
    assert torch.equal(case.plan.picks, picks)


def test_keys_of_another_width_or_of_whole_numbers_are_not_quantised() -> None:
    assert refused_fields(lambda: quantise(torch.ones(3, 64))) == ["values.shape"]
    assert refused_fields(lambda: quantise(torch.tensor(1.0))) == ["values.shape"]
    assert refused_fields(lambda: quantise(torch.ones(3, 128, dtype=torch.int32))) == ["values.dtype"]
    assert quantise(torch.ones(0, 128))[1].shape == (0,)


def test_a_plan_gives_no_more_requests_than_it_has() -> None:
    plan, split = StepPlan.allocate(GEOMETRY, "cpu"), SplitPicks.allocate(GEOMETRY, 2, "cpu")
    assert plan.first(2).batch == 2
    for batch in (-1, 3):
        assert refused_fields(lambda batch=batch: plan.first(batch)) == ["batch"]  # type: ignore[misc]
        assert refused_fields(lambda batch=batch: split.first(batch)) == ["batch"]  # type: ignore[misc]
    assert refused_fields(lambda: StepPlan.allocate(GEOMETRY, "cpu", 1025)) == ["batch"]
    assert refused_fields(lambda: SplitPicks.allocate(GEOMETRY, 0, "cpu")) == ["batch"]


def test_host_rows_are_not_narrower_than_a_row() -> None:
    assert refused_fields(lambda: HostRows.allocate(4, 1, 1152, stride_bytes=16)) == ["stride_bytes"]
    assert refused_fields(lambda: HostRows.allocate(-1, 0, 1152)) == ["pages", "layers"]


def test_seats_and_pages_that_are_none_change_no_seat() -> None:
    cache, _ = _cache()
    cache.take_seat(1, [5], 10)
    before = [tensor.clone() for tensor in vars(cache.state).values()]
    assert refused_fields(lambda: cache.extend_seat(-1, [1])) == ["seat"]
    assert refused_fields(lambda: cache.extend_seat(2, [1])) == ["seat"]
    assert refused_fields(lambda: cache.extend_seat(1, [5, -4])) == ["pages"]
    assert refused_fields(lambda: cache.take_seat(1, [2**31], 10)) == ["pages"]
    assert refused_fields(lambda: cache.take_seat(1, [1.5], 10)) == ["pages"]  # type: ignore[list-item]
    assert refused_fields(lambda: cache.take_seat(1, [5], 1.5)) == ["length"]  # type: ignore[arg-type]
    assert refused_fields(lambda: cache.advance(torch.tensor([1.0]), 1)) == ["seats.dtype"]
    assert refused_fields(lambda: cache.advance(cache.plan.seats, torch.tensor([1]))) == ["tokens.shape"]
    for tensor, was in zip(vars(cache.state).values(), before, strict=True):
        assert torch.equal(tensor, was)


def test_a_seat_keeps_no_page_behind_those_it_is_given() -> None:
    cache, _ = _cache()
    cache.extend_seat(0, [3, 4, 6])
    assert cache.state.page_map[0, :4].tolist() == [3, 4, 6, -1]
    cache.extend_seat(0, [3])
    assert cache.state.page_map[0, :4].tolist() == [3, -1, -1, -1]


def test_hits_first_that_is_refused_swaps_nothing_in() -> None:
    cache, host = _cache()
    split = SplitPicks.allocate(GEOMETRY, 2, "cpu")
    q = torch.zeros((2, 1, 8, 576), dtype=torch.bfloat16)
    before = cache.words.clone()
    assert refused_fields(lambda: attend_hits_first(cache, 0, host, split, q, scale=-1)) == ["scale"]
    assert refused_fields(lambda: attend_hits_first(cache, 0, host, split, q[:, :, 0], scale=1)) == ["q.shape"]
    assert torch.equal(cache.words, before)


def test_host_rows_of_another_cache_call_no_row_hot() -> None:
    cache, host = _cache()
    before = cache.words.clone()
    narrow, deep = HostRows.allocate(8, 1, 656), HostRows.allocate(8, 2, 1152)
    assert refused_fields(lambda: swap_in(cache, 0, narrow)) == ["host.row_bytes"]
    assert refused_fields(lambda: swap_in(cache, 0, deep)) == ["host.layers"]
    assert torch.equal(cache.words, before)
    assert refused_fields(lambda: back_up(cache, 0, narrow)) == ["host.row_bytes"]
    assert refused_fields(lambda: back_up(cache, 1, host)) == ["group"]
    swap_in(cache, 0, host)
    parked = park_seat(cache, 0)
    assert refused_fields(lambda: unpark_seat(cache, 1, parked, [deep])) == ["host.layers"]
    assert cache.state.lengths.tolist() == [0, 0]


def test_parts_of_another_call_are_refused_where_nothing_overlaps_too() -> None:
    cache, _ = _cache()
    q = torch.zeros((2, 1, 8, 576), dtype=torch.bfloat16)
    one = SplitPicks.allocate(GEOMETRY, 1, "cpu")
    wrong = refused_fields(lambda: attend_beside_gather(q, cache.rows[0][0], cache.plan.rows, one, scale=1))
    assert wrong == ["hits.rows.shape", "hits.counts.shape", "misses.rows.shape", "misses.counts.shape"]
