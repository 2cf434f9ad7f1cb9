"""Every policy does to the token what its slow model does, and Belady is the best there can be."""

from __future__ import annotations

import numpy as np
import pytest
from hisparse_svc.simulate import POLICIES, make
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulate.slow import SLOW, Slow, SlowBelady, least_misses, random_steps

MANY = settings(max_examples=60, deadline=None)
SEEDS = st.integers(0, 2**32)
ROWS = st.integers(4, 40)


def arrays(steps: list[list[int]]) -> list[np.ndarray]:
    return [np.array(picks, dtype=np.int32) for picks in steps]


def shape(seed: int, rows: int) -> tuple[int, list[list[int]]]:
    top_k = max(2, rows * (1 + seed % 4) // 4)
    return top_k, random_steps(seed, tokens=3 * rows + seed % 50, top_k=top_k, steps=40)


@pytest.mark.parametrize("name", SLOW)
@MANY
@given(seed=SEEDS, rows=ROWS)
def test_a_policy_does_what_its_slow_model_does(name: str, seed: int, rows: int) -> None:
    _, steps = shape(seed, rows)
    fast, slow = make(name, arrays(steps), rows), SLOW[name](rows)
    for number, picks in enumerate(arrays(steps)):
        missed = fast.step(picks).tolist()
        assert missed == slow.step(steps[number]), f"step {number}"
        assert np.flatnonzero(fast.resident).tolist() == sorted(slow.hot()), f"after step {number}"


@pytest.mark.parametrize("name", POLICIES)
@MANY
@given(seed=SEEDS, rows=ROWS)
def test_no_policy_evicts_a_pick_in_its_own_step_or_holds_more_than_its_rows(name: str, seed: int, rows: int) -> None:
    _, steps = shape(seed, rows)
    policy = make(name, arrays(steps), rows, seed)
    seen: set[int] = set()
    for picks in arrays(steps):
        before = policy.resident.copy()
        missed = policy.step(picks)
        assert missed.tolist() == picks[~before[picks]].tolist()
        assert policy.resident[picks].all()
        seen |= set(picks.tolist())
        assert policy.resident.sum() == policy.held == min(rows, len(seen)), "a row leaves only for another"
        assert not policy.picked.any()


@MANY
@given(seed=SEEDS, rows=ROWS)
def test_belady_misses_no_more_than_any_policy_and_as_its_slow_model(seed: int, rows: int) -> None:
    _, steps = shape(seed, rows)
    misses = {
        name: sum(len(policy.step(picks)) for picks in arrays(steps))
        for name, policy in ((name, make(name, arrays(steps), rows, seed)) for name in POLICIES)
    }
    assert misses["belady"] == min(misses.values()), misses
    slow: Slow = SlowBelady(rows, steps)
    assert misses["belady"] == sum(len(slow.step(picks)) for picks in steps)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS)
def test_belady_is_the_best_of_all_choices_of_victims(seed: int) -> None:
    steps = random_steps(seed, tokens=8, top_k=3, steps=9)
    belady = make("belady", arrays(steps), 4)
    assert sum(len(belady.step(picks)) for picks in arrays(steps)) == least_misses(steps, 4)


def test_random_takes_each_row_equally_often_and_repeats_by_its_seed() -> None:
    left = np.zeros(101)
    for seed in range(2000):
        policies = [make("random", [np.array([100])], 20, seed) for _ in range(2)]
        for policy in policies:
            policy.step(np.arange(20))
            policy.step(np.array([3, 100]))
        assert (policies[0].resident == policies[1].resident).all()
        left[np.flatnonzero(~policies[0].resident[:20])] += 1
    assert left[3] == 0
    expected = 2000 / 19
    assert (np.abs(np.delete(left[:20], 3) - expected) < 5 * expected**0.5).all()
