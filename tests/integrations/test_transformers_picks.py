"""Picks of a decoding model become a stream, over which the simulator's LRU misses what the hot cache missed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hisparse_svc.integrations.transformers import ContinuousBatch, HostKv, record_picks
from hisparse_svc.simulate import Wanted, simulate
from hisparse_svc.topk import Stream

from tests.integrations import models

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 12


@pytest.mark.parametrize("hot_rows", [128, 192, 256])
@pytest.mark.parametrize("family", models.FAMILIES)
def test_simulated_lru_misses_what_the_hot_cache_swapped_in(family: str, hot_rows: int, tmp_path: Path) -> None:
    file, prompts = tmp_path / "picks.topk", (300, 420)
    with HostKv.embedded(models.make(family), hot_rows=hot_rows, kv_bytes="48MiB", host_pool="96MiB") as kv:
        driver = ContinuousBatch(kv, batch=1)
        for tokens in prompts:
            driver.submit(models.prompt(tokens, 5), STEPS + 1)
        with record_picks(kv, file, weights="random"):
            driver.run()
        swapped, groups = kv.swapped_rows, kv.session.shape.layer_groups
    stream = Stream(file)
    assert stream.requests == [("0", prompts[0]), ("1", prompts[1])]
    assert (stream.steps, stream.top_k, stream.model, stream.source) == (STEPS, 128, family, {"weights": "random"})
    (lru,) = simulate([stream], Wanted(hot_rows=(hot_rows,), policies=("lru",)))["results"]
    misses = {int(layer): share * lru["picks"] / len(groups) for layer, share in lru["by_layer"].items()}
    expected = sum(layers * rows for layers, rows in zip(groups, misses.values(), strict=True))
    assert swapped > 1000
    # A stream has the picks of a step in ascending order, not in the model's: ties of one step go to others.
    assert abs(swapped - expected) <= 0.02 * swapped, (swapped, expected)
