"""Rests after failures: they double, are bounded, and differ between those who fail together."""

from __future__ import annotations

import random

from hisparse_svc.rpc.backoff import FIRST_REST_S, LATER, LONGEST_REST_S, Backoff
from hypothesis import given
from hypothesis import strategies as st


def test_rests_double_to_their_bound_and_begin_anew_after_a_success() -> None:
    backoff = Backoff(chance=lambda: 1.0)
    assert [backoff.failed(0.0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert Backoff(chance=lambda: 0.0).failed(0.0) == 0.5, "no two rest for the same time"
    assert backoff.succeeded() == 8
    assert backoff.failed(10.0, most_s=0.4) == 0.4
    assert backoff.until == 10.4


@given(seed=st.integers(0, 1 << 64), failures=st.integers(0, 100), most_s=st.floats(0.001, LONGEST_REST_S))
def test_a_rest_is_at_most_its_bound_and_at_least_half_of_it(seed: int, failures: int, most_s: float) -> None:
    backoff = Backoff(chance=random.Random(seed).random)  # noqa: S311 - a seed replays it
    for _ in range(failures):
        backoff.failed(0.0, most_s=most_s)
    bound = min(FIRST_REST_S * 2.0**failures, most_s)
    assert bound / 2 <= backoff.failed(0.0, most_s=most_s) <= bound


@given(asked=st.floats(0, 1_000), failures=st.integers(0, 40), chance=st.floats(0, 1))
def test_a_rest_is_as_long_as_the_server_asks_up_to_a_minute(asked: float, failures: int, chance: float) -> None:
    backoff = Backoff(chance=lambda: chance)
    for _ in range(failures):
        backoff.failed(0.0)
    assert min(asked, LONGEST_REST_S) <= backoff.failed(0.0, asked) <= LONGEST_REST_S * (1 + LATER)
