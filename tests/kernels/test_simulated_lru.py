"""The LRU of `hisparse_svc.simulate` is the hot cache's own, to the order of its words, the newest page included."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hisparse_svc.engine import MLA_FP8, HotCache
from hisparse_svc.kernels import NEWEST_TOKENS as KERNELS_NEWEST_TOKENS
from hisparse_svc.kernels import Geometry, reference
from hisparse_svc.kernels.words import tokens_of
from hisparse_svc.simulate import make
from hisparse_svc.topk import NEWEST_TOKENS, Lane


def test_the_newest_window_is_the_kernels_own() -> None:
    assert NEWEST_TOKENS == KERNELS_NEWEST_TOKENS


@pytest.mark.parametrize("tokens", [600, 70_000])
def test_lru_is_the_hot_cache(tokens: int) -> None:
    random = np.random.default_rng(tokens)
    geometry = Geometry(seats=1, hot_rows=128, top_k=64, context_tokens=tokens)
    cache = HotCache(geometry, [1], MLA_FP8, "cpu")
    joined = tokens - 150
    cache.take_seat(0, range(geometry.map_pages), joined)
    cache.plan.seats[:] = 0
    lane = Lane("a", 0, joined)
    counts, hot = [], []
    for step in range(120):
        cache.advance(cache.plan.seats, 1)
        length = joined + step + 1
        near = random.choice(200, 40, replace=False) + 50 * (step // 40)
        picks = np.unique(np.concatenate([near, random.choice(length, 24, replace=False)]))[:64].astype(np.int32)
        lane.steps.append(step)
        lane.lengths.append(length)
        lane.picks.append(picks)
        cache.plan.picks.fill_(-1)
        cache.plan.picks[0, 0, : len(picks)] = torch.from_numpy(picks)
        reference.resolve(geometry, cache.words[0], cache.state, cache.plan)
        counts.append(int(cache.plan.counts[0]))
        held = tokens_of(geometry, cache.words[0, 0])
        hot.append(held[held != geometry.empty_token].tolist())
    steps = lane.older()
    lru = make("lru", steps, 128)
    for step, picks in enumerate(steps):
        assert len(lru.step(picks)) == counts[step], f"step {step}"
        assert lru.queue.tolist() == hot[step], f"step {step}: the order too"  # type: ignore[attr-defined]
    assert sum(counts) > 300
