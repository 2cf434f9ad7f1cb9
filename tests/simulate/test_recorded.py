"""A recorded stream: a small GLM that reads source text; what was published for it is what the simulator still says."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("numpy", reason="numpy is not installed: pip install numpy")
from hisparse_svc.simulate import Wanted, simulate
from hisparse_svc.topk import Stream

from tests.conftest import ROOT

RESULTS = ROOT / "benches" / "results"


def test_the_kept_stream_gives_the_kept_figures() -> None:
    kept = json.loads((RESULTS / "recorded_picks.json").read_text(encoding="utf-8"))["cpu"]
    stream = Stream(RESULTS / "recorded_picks.topk")
    assert (stream.steps, stream.top_k, stream.source) == (kept["steps"], kept["top_k"], kept["source"])
    policies = ("lru", "fifo", "random", "clock", "lru-2", "belady")
    found = simulate([stream], Wanted(hot_rows=(256,), policies=policies, skip=kept["skip"]))["results"]
    shares = {one["policy"]: one["miss_share"] for one in found}
    published = {one["policy"]: one["miss_share"] for one in kept["results"] if one["hot_rows"] == 256}
    assert shares == {name: published[name] for name in policies}


def test_frequency_counts_in_the_kept_stream_where_it_counts_for_nothing_in_a_stack() -> None:
    kept = json.loads((RESULTS / "recorded_picks.json").read_text(encoding="utf-8"))["cpu"]
    shares = {(one["policy"], one["hot_rows"]): one["miss_share"] for one in kept["results"]}
    for rows in (256, 512):
        assert shares["belady", rows] < shares["arc", rows] < shares["lru", rows], rows
        assert shares["s3-fifo", rows] < shares["lru", rows], rows
        assert shares["random", rows] < shares["fifo", rows], rows
