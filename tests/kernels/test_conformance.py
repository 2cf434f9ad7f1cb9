from __future__ import annotations

from functools import partial

import pytest
from hisparse_svc import InvalidInput, testing

from tests.kernels.planted_bugs import BUGS


@pytest.mark.parametrize("name", testing.CHECKS)
def test_our_hot_cache_conforms(name: str, device: str) -> None:
    testing.CHECKS[name](partial(testing.HotCacheSubject, device=device), seed=1)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_refused(bug: type[testing.HotCacheSubject]) -> None:
    with pytest.raises(testing.NonConforming, match="seed 0"):
        testing.CHECKS[BUGS[bug]](bug)


def test_a_policy_that_is_not_lru_may_be_told_apart() -> None:
    bug = next(bug for bug in BUGS if bug.__name__ == "EvictsFirstInFirstOut")
    testing.CHECKS["recency_decides"](bug, exact_lru=False)


def test_a_run_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"checks is nope: must be one of random_steps, .*\nseeds is none"):
        testing.run(testing.HotCacheSubject, seeds=[], checks=["nope"])


def test_run_counts_what_it_ran() -> None:
    assert testing.run(testing.HotCacheSubject, seeds=(0, 1), checks=["nothing_picked", "outputs_shrink"]) == 4
