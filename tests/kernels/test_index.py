"""The indexer's reference against plain arithmetic that shares nothing with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hisparse_svc import InvalidInput
from hisparse_svc.kernels import (
    INDEX_F32,
    INDEX_FP8,
    Geometry,
    IndexKeys,
    SeatState,
    StepPlan,
    append_index_keys,
    index_logits,
    index_logits_shape,
    index_top_k,
    indexer,
    quantise,
    write_index_keys,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.index_cases import index_case


def _plain_logit(q: torch.Tensor, weights: torch.Tensor, key: torch.Tensor) -> float:
    return sum(
        float(weight) * max(0.0, sum(a * b for a, b in zip(head.tolist(), key.tolist(), strict=True)))
        for head, weight in zip(q.double(), weights.double(), strict=True)
    )


def test_a_logit_is_the_weighted_sum_of_rectified_products_times_the_scale() -> None:
    case = index_case([70, 3], heads=5, query_rows=2)
    case.logits_by()
    for request, seat in enumerate(case.plan.seats.tolist()):
        for row in range(2):
            for token in range(0, case.visible(request, row), 7):
                stored, scale = quantise(case.numbers[seat][token])
                expected = float(scale) * _plain_logit(
                    case.q[request, row], case.weights[request, row], stored.double()
                )
                assert float(case.logits[request, row, token]) == pytest.approx(expected, rel=1e-5)
            assert case.logits[request, row, case.visible(request, row) :].isnan().all()


def test_fp32_keys_are_scored_without_quantising() -> None:
    case = index_case([65, 20], heads=3, stored=INDEX_F32)
    case.logits_by()
    for request, seat in enumerate(case.plan.seats.tolist()):
        for token in range(0, case.visible(request, 0), 5):
            expected = _plain_logit(case.q[request, 0], case.weights[request, 0], case.numbers[seat][token])
            assert float(case.logits[request, 0, token]) == pytest.approx(expected, rel=1e-5)


def test_fp8_keys_score_as_fp32_keys_do_within_a_thousandth() -> None:
    fp8, f32 = (index_case([4000], stored=stored, seed=3) for stored in (INDEX_FP8, INDEX_F32))
    for case in (fp8, f32):
        case.logits_by()
    one, other = fp8.logits[0, 0, :4000].double(), f32.logits[0, 0, :4000].double()
    assert 1 - 2 * (one * other).sum() / (one.square() + other.square()).sum() < 1e-3


def test_a_token_without_a_page_scores_minus_infinity_and_is_not_picked() -> None:
    case = index_case([200], top_k=199)
    case.state.page_map[0, 1] = -1
    case.state.page_map[0, 3] = case.keys.page_count
    case.picks_by()
    unmapped = torch.arange(200) // 64 % 2 == 1
    assert (case.logits[0, 0, :200].isneginf() == unmapped).all()
    assert case.plan.picks[0, 0].tolist() == [*range(64), *range(128, 192)] + [-1] * 71


def test_keys_may_have_pages_of_their_own() -> None:
    case = index_case([200, 130], heads=3, top_k=50)
    case.picks_by()
    picks, logits, own = case.plan.picks.clone(), case.logits.clone(), case.state.page_map.clone()
    case.state.page_map.fill_(-1)  # of the host pool, whose numbers a cache of keys need not share
    new = torch.stack([case.numbers[seat][-1:] for seat in case.plan.seats.tolist()])
    before = case.keys.pages.clone()
    append_index_keys(*case.arguments[:4], torch.zeros_like(new), page_map=own)
    assert not torch.equal(case.keys.pages, before)
    append_index_keys(*case.arguments[:4], new, page_map=own)
    assert torch.equal(case.keys.pages, before)
    indexer(*case.arguments, weights=case.weights, logits=case.logits, page_map=own)
    assert torch.equal(case.plan.picks, picks)
    assert torch.equal(case.logits.nan_to_num(), logits.nan_to_num())


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_picks_are_the_first_of_all_tokens_sorted_by_score_and_number(data: st.DataObject) -> None:
    top_k, length = data.draw(st.integers(1, 40)), data.draw(st.integers(0, 130))
    score = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, float("inf"), float("-inf"), float("nan"), 1e-42, 3.25])
    scores = data.draw(st.lists(score, min_size=length, max_size=length))
    geometry = Geometry(seats=1, hot_rows=64, top_k=top_k, context_tokens=192)
    state, plan = SeatState.allocate(geometry, "cpu"), StepPlan.allocate(geometry, "cpu")
    plan.seats[0], state.lengths[0] = 0, length
    logits = torch.full(index_logits_shape(geometry, 1), 9.0)
    logits[0, 0, :length] = torch.tensor(scores)
    index_top_k(geometry, state, plan, logits)
    ranked = sorted((-value, token) for token, value in enumerate(scores) if value > float("-inf"))
    expected = sorted(token for _, token in ranked[:top_k])
    assert plan.picks[0, 0].tolist() == expected + [-1] * (top_k - len(expected))


def test_each_query_row_sees_one_token_more_than_the_row_before() -> None:
    case = index_case([3, 1, 0], query_rows=3, top_k=8)
    case.picks_by()
    seen = {
        int(seat): [(row >= 0).sum().item() for row in case.plan.picks[at]] for at, seat in enumerate(case.plan.seats)
    }
    assert seen == {0: [1, 2, 3], 1: [0, 0, 1], 2: [0, 0, 0]}


def test_a_padded_request_has_no_picks_and_no_logits() -> None:
    case = index_case([100, 100], padded=[1])
    case.plan.picks.fill_(7)
    case.picks_by()
    assert (case.plan.picks[1] == -1).all()
    assert case.logits[1].isnan().all()
    assert (case.plan.picks[0] >= 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("stored", [INDEX_FP8, INDEX_F32], ids=lambda stored: stored.name)
def test_appended_keys_are_the_keys_written_at_once(dtype: torch.dtype, stored: object) -> None:
    geometry = Geometry(seats=2, hot_rows=64, top_k=8, query_rows=3, context_tokens=256)
    state, plan = SeatState.allocate(geometry, "cpu"), StepPlan.allocate(geometry, "cpu")
    plan.seats[:] = torch.tensor([1, -1])
    state.page_map[1] = torch.tensor([4, 2, -1, 0])
    values = torch.randn((240, 128)).to(dtype)
    values[5] = 0
    appended, written = (IndexKeys.allocate(5, "cpu", stored) for _ in range(2))
    for keys in (appended, written):
        keys.pages.zero_()
    write_index_keys(written, values, state.page_map[1])
    for length in range(3, 241, 3):
        state.lengths[1] = length
        new = torch.stack([values[length - 3 : length], torch.zeros((3, 128), dtype=dtype)])
        append_index_keys(geometry, appended, state, plan, new)
    assert torch.equal(appended.pages, written.pages)
    assert written.pages[[4, 2, 0]].any(1).all()
    assert not written.pages[[1, 3]].any()


def test_a_first_step_of_many_rows_stores_only_tokens_that_exist() -> None:
    geometry = Geometry(seats=1, hot_rows=64, top_k=8, query_rows=4, context_tokens=64)
    state, plan = SeatState.allocate(geometry, "cpu"), StepPlan.allocate(geometry, "cpu")
    plan.seats[0], state.page_map[0, 0], state.lengths[0] = 0, 0, 2
    keys = IndexKeys.allocate(1, "cpu")
    keys.pages.zero_()
    append_index_keys(geometry, keys, state, plan, torch.ones((1, 4, 128)))
    assert (keys.scales()[0] != 0).tolist() == [True] * 2 + [False] * 62


def test_quantising_keeps_every_number_within_a_sixteenth_and_zero_at_zero() -> None:
    values = torch.randn((50, 128)) * torch.logspace(-3, 3, 50).unsqueeze(1)
    values[7] = 0
    stored, scales = quantise(values)
    error = (stored.float() * scales.unsqueeze(1) - values).abs()
    assert (error <= values.abs() / 16 + scales.unsqueeze(1) * 2**-10).all()
    assert not stored[7].float().any()
    assert scales[7] > 0


def test_everything_wrong_with_a_call_is_said_at_once() -> None:
    case = index_case([100, 100], heads=8)
    with pytest.raises(InvalidInput) as raised:
        index_logits(
            case.geometry,
            case.keys,
            case.state,
            replace(case.plan, counts=case.plan.counts.long()),
            case.q.float(),
            weights=case.weights[:1],
            logits=case.logits[..., :64],
            page_map=case.state.page_map[:1],
        )
    assert [problem.field for problem in raised.value.problems] == [
        "plan.counts.dtype",
        "page_map.shape",
        "weights.shape",
        "q.dtype",
        "logits.shape",
    ]


@pytest.mark.parametrize(
    ("pages", "field"),
    [
        (torch.zeros((2, 8447), dtype=torch.uint8), "keys.shape"),
        (torch.zeros((2, 8448), dtype=torch.int8), "keys.dtype"),
        (torch.zeros((2, 8448 * 2), dtype=torch.uint8)[:, ::2], "keys.stride"),
        (torch.zeros((2, 8456), dtype=torch.uint8)[:, :8448], "keys.stride"),
        (torch.zeros((0, 8448), dtype=torch.uint8), "keys.shape"),
    ],
)
def test_pages_that_are_none_are_refused(pages: torch.Tensor, field: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        IndexKeys(pages)
    assert [problem.field for problem in raised.value.problems] == [field]


def test_keys_outside_the_pages_given_are_refused() -> None:
    keys = IndexKeys.allocate(2, "cpu")
    with pytest.raises(InvalidInput, match="must lie within the 64 tokens"):
        write_index_keys(keys, torch.zeros((3, 128)), torch.zeros(1, dtype=torch.int32), first_token=62)


def test_an_unknown_backend_is_refused_by_the_names_there_are() -> None:
    case = index_case([100])
    with pytest.raises(InvalidInput, match="must be auto or one of reference, cuda, deep_gemm"):
        case.logits_by(backend="magic")
