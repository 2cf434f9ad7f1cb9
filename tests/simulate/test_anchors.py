"""The kept comparison with published miss shares comes out again, on one lane of its stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hisparse_svc.simulate import make
from hisparse_svc.topk import Stream, Synthetic, write_synthetic

KEPT = json.loads((Path(__file__).parents[2] / "benches/results/policies.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    source = KEPT["fitted"]["stream"]
    misses = {int(rows): share for rows, share in source["misses"].items()}
    path = tmp_path_factory.mktemp("fitted") / "a.topk"
    write_synthetic(path, Synthetic(**{**source, "misses": misses, "layers": 1}))
    (lane,) = Stream(path).lanes()
    return lane.older()


@pytest.mark.parametrize("anchor", KEPT["anchors"], ids=lambda anchor: f"{anchor['policy']}-{anchor['hot_rows']}")
def test_an_anchor_comes_out_again(anchor: dict[str, Any], steps: list[Any]) -> None:
    policy = make(anchor["policy"], steps, anchor["hot_rows"])
    share = sum(len(policy.step(picks)) for picks in steps) / (len(steps) * KEPT["fitted"]["stream"]["top_k"])
    assert abs(share - anchor["ours"]) < 0.003
    if anchor["policy"] in ("lru", "belady"):
        assert abs(share - anchor["published"]) < 0.004
    else:  # FIFO and random do not follow from LRU: docs/simulating.md says why
        assert abs(share - anchor["published"]) < 0.015
