"""When a status is written: 5 %, the bound on writes, the jitter, and rests after failures."""

from __future__ import annotations

from typing import Any

import pytest
from hisparse_svc.kube.objects import DRAINING, SERVING, UNREACHABLE
from hisparse_svc.kube.pace import BURST, JITTER, Pace, moved
from hypothesis import given
from hypothesis import strategies as st

from tests.publish.sample import another_run, capacity, condition

amounts = st.integers(0, 1_000)


@given(before=amounts, after=amounts)
def test_a_twentieth_of_a_pool_is_enough_and_less_is_not(before: int, after: int) -> None:
    assert moved(capacity(pages=before), capacity(pages=after)) == (abs(before - after) >= 50)


@given(before=st.integers(0, 10_000), after=st.integers(0, 10_000))
def test_a_twentieth_of_what_fits_is_enough_so_the_first_and_the_last_one_always_are(before: int, after: int) -> None:
    enough = before != after and abs(before - after) * 20 >= max(before, after)
    assert moved(capacity(fits=before), capacity(fits=after)) == enough
    if (before == 0) != (after == 0):
        assert enough


@pytest.mark.parametrize(
    ("change", "enough"),
    [({"seats": 38}, True), ({"seats": 39}, False), ({"grant": 56_800}, True), ({"grant": 56_801}, False)],
)
def test_seats_and_the_largest_grant_count_too(change: dict[str, Any], enough: bool) -> None:
    assert moved(capacity(), capacity(**change)) is enough


def test_small_changes_that_add_up_are_one_large_one() -> None:
    pace = Pace(20.0, chance=lambda: 0.5)
    pace.written(condition(), 0.0)
    assert pace.due_at(condition(pages=960), 1.0) == 20.0
    assert pace.due_at(condition(pages=950), 2.0) <= 2.0, "against what is written, not against the last look"


@pytest.mark.parametrize(
    "after", [condition(DRAINING), condition(UNREACHABLE), condition(epoch=8), another_run(condition())]
)
def test_another_state_epoch_or_run_is_written_at_once(after: Any) -> None:
    pace = Pace(20.0)
    pace.written(condition(), 100.0)
    assert pace.due_at(after, 100.5) <= 100.5


def test_changes_leave_the_last_write_of_a_burst_for_a_state() -> None:
    pace = Pace(20.0, chance=lambda: 0.5)
    pace.written(condition(), 0.0)
    pace.written(condition(pages=500), 0.0)
    far = condition(pages=100)
    assert pace.due_at(far, 0.0) == pace.token_s == 5.0
    assert pace.due_at(condition(DRAINING), 0.0) == 0.0
    pace.written(condition(DRAINING), 0.0)
    assert pace.due_at(condition(SERVING), 0.0) == pace.token_s, "a state that flickers is bounded too"


@given(
    refresh_s=st.floats(5, 300),
    steps=st.lists(
        st.tuples(st.floats(0, 3), amounts, st.sampled_from([SERVING, DRAINING, UNREACHABLE])), max_size=300
    ),
    chance=st.randoms(use_true_random=False),
)
def test_whatever_a_node_does_its_writes_are_bounded_and_never_late(
    refresh_s: float, steps: list[tuple[float, int, str]], chance: Any
) -> None:
    pace, now, writes = Pace(refresh_s, chance=chance.random), 0.0, [0.0]
    pace.written(condition(), now)
    for rest, pages, state in steps:
        now += rest
        seen = condition(state, pages=pages)
        assert pace.due_at(seen, now) <= writes[-1] + refresh_s * (1 + JITTER) + 1e-6
        if pace.due_at(seen, now) <= now:
            pace.written(seen, now)
            writes.append(now)
    for first, start in enumerate(writes):
        for count, end in enumerate(writes[first:], 1):
            assert count <= BURST + (end - start) / pace.token_s + 1e-6


@given(chance=st.floats(0, 1), refresh_s=st.floats(5, 300))
def test_a_refresh_is_drawn_anew_within_a_fifth(chance: float, refresh_s: float) -> None:
    pace = Pace(refresh_s, chance=lambda: chance)
    pace.written(condition(), 1_000.0)
    due_s = pace.due_at(condition(), 1_001.0) - 1_000.0
    assert 0.8 * refresh_s - 1e-6 <= due_s <= 1.2 * refresh_s + 1e-6
    assert due_s == pytest.approx(refresh_s * (0.8 + 0.4 * chance))
