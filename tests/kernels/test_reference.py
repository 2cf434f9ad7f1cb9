"""The reference against a model in plain Python that shares nothing with it."""

from __future__ import annotations

import random

import pytest
import torch
from hisparse_svc import InvalidInput
from hisparse_svc.kernels import NEWEST_TOKENS, Geometry, SeatState, StepPlan, reference, resolve
from hisparse_svc.kernels.words import empty_words, pack, slots_of, tokens_of
from hypothesis import given, settings
from hypothesis import strategies as st

SETTINGS = settings(max_examples=40, deadline=None)


class PlainLru:
    """A dictionary in order of use."""

    def __init__(self, hot_rows: int) -> None:
        self.free = list(range(hot_rows))
        self.slots: dict[int, int] = {}

    def step(self, wanted: list[int]) -> tuple[dict[int, int], list[int]]:
        distinct = list(dict.fromkeys(wanted))
        missing = [token for token in distinct if token not in self.slots]
        stale = [token for token in self.slots if token not in distinct]
        for token in [token for token in self.slots if token in distinct]:
            self.slots[token] = self.slots.pop(token)
        for token in missing:
            slot = self.free.pop(0) if self.free else self.slots.pop(stale.pop(0))
            self.slots[token] = slot
        return dict(self.slots), missing


@SETTINGS
@given(seed=st.integers(0, 2**32), query_rows=st.integers(1, 3), wide=st.booleans())
def test_resolve_does_what_a_dictionary_in_order_of_use_does(seed: int, query_rows: int, wide: bool) -> None:
    chance = random.Random(seed)  # noqa: S311 - test data
    context = 2**30 if wide else 4096
    geometry = Geometry(seats=2, hot_rows=64, top_k=16, query_rows=query_rows, context_tokens=context)
    assert geometry.word_bits == (64 if wide else 32)
    geometry_map = torch.full((2, 1), -1, dtype=torch.int32)
    state = SeatState(
        lengths=torch.zeros(2, dtype=torch.int64),
        mapped_pages=torch.zeros(2, dtype=torch.int32),
        newest_from=torch.zeros(2, dtype=torch.int32),
        page_map=geometry_map if wide else torch.full((2, geometry.map_pages), -1, dtype=torch.int32),
    )

    words = empty_words(geometry, "cpu").repeat(2, 1)
    plan = StepPlan.allocate(geometry, "cpu", 1)
    plan.seats[0] = seat = chance.randrange(2)
    length = chance.choice([1, 17, 200, 4000])
    state.lengths[seat], state.newest_from[seat] = length, max(0, length - 3)
    model = PlainLru(geometry.hot_rows)
    for _ in range(12):
        pool = [chance.randrange(-1, length + 2) for _ in range(chance.choice([3, 16, 60]))]
        picks = [chance.choice(pool) for _ in range(geometry.picks)]
        plan.picks[0] = torch.tensor(picks).view(query_rows, 16)
        reference.resolve(geometry, words, state, plan)

        start = max(length - NEWEST_TOKENS, length - 3, 0)
        slots, missing = model.step([token for token in picks if 0 <= token < start])
        first_row = seat * geometry.padded_rows
        expected = [
            -1 if not 0 <= token < length else first_row + (64 + token % 64 if token >= start else slots[token])
            for token in picks
        ]
        assert plan.rows.flatten().tolist() == expected
        assert plan.misses[0, : int(plan.counts[0])].tolist() == [[t, first_row + slots[t]] for t in missing]
        held = tokens_of(geometry, words[seat])
        assert held[held != geometry.empty_token].tolist() == list(slots)
        assert sorted(slots_of(geometry, words[seat]).tolist()) == list(range(64))


def test_the_orders_of_misses_differ_in_nothing_else() -> None:
    geometry = Geometry(seats=1, hot_rows=64, top_k=16, context_tokens=1024)

    state, plan = SeatState.allocate(geometry, "cpu"), StepPlan.allocate(geometry, "cpu")
    state.lengths[0] = state.newest_from[0] = 500
    plan.seats[0] = 0
    plan.picks[0] = torch.tensor([[9, 3, 7, 3, -1, 100, *range(200, 210)]])
    results = {}
    for order in ("picks", "tokens"):
        words = empty_words(geometry, "cpu")[None].clone()
        reference.resolve(geometry, words, state, plan, order=order)
        results[order] = plan.misses[0, : int(plan.counts[0]), 0].tolist()
    assert results["picks"] == [9, 3, 7, 100, *range(200, 210)]
    assert results["tokens"] == sorted(results["picks"])


@SETTINGS
@given(
    hot_rows=st.integers(1, 512).map(lambda n: n * 64),
    context=st.integers(1, 2**31 - 1),
    data=st.data(),
)
def test_words_hold_every_slot_and_token(hot_rows: int, context: int, data: st.DataObject) -> None:
    geometry = Geometry(seats=1, hot_rows=hot_rows, top_k=1, context_tokens=context)
    slots = torch.tensor([0, hot_rows - 1, data.draw(st.integers(0, hot_rows - 1))])
    tokens = torch.tensor([context - 1, 0, data.draw(st.integers(0, context - 1))])
    words = pack(geometry, slots, tokens)
    assert slots_of(geometry, words).tolist() == slots.tolist()
    assert tokens_of(geometry, words).tolist() == tokens.tolist()
    assert words.element_size() == geometry.word_bytes


def test_a_batch_leaves_other_seats_alone() -> None:
    geometry = Geometry(seats=3, hot_rows=64, top_k=16, context_tokens=1024)
    state, plan = SeatState.allocate(geometry, "cpu"), StepPlan.allocate(geometry, "cpu", 1)
    state.lengths[:] = 100
    words = empty_words(geometry, "cpu").repeat(3, 1)
    before = words.clone()
    plan.seats[0], plan.picks[0, 0, 0] = 1, 5
    resolve(geometry, words, state, plan)
    assert torch.equal(words[[0, 2]], before[[0, 2]])
    assert not torch.equal(words[1], before[1])


@pytest.mark.parametrize(
    ("numbers", "fields"),
    [
        ({"seats": 0, "top_k": -1}, ["seats", "top_k"]),
        ({"hot_rows": 100}, ["hot_rows"]),
        ({"hot_rows": 40_000}, ["hot_rows"]),
        ({"hot_rows": 32_832}, ["hot_rows"]),
        ({"query_rows": 9, "hot_rows": 64}, ["query_rows", "hot_rows"]),
        ({"seats": 2**27}, ["seats"]),
        ({"context_tokens": 2**31}, ["context_tokens"]),
    ],
)
def test_a_geometry_names_every_number_it_cannot_have(numbers: dict[str, int], fields: list[str]) -> None:
    with pytest.raises(InvalidInput) as raised:
        Geometry(**{"seats": 2, "hot_rows": 128, "top_k": 64, **numbers})
    assert list(dict.fromkeys(problem.field for problem in raised.value.problems)) == fields
    assert all(problem.remedy for problem in raised.value.problems)
