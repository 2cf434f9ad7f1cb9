"""`simulate`: its document, its model of the link, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hisparse_svc.errors import InvalidInput
from hisparse_svc.simulate import POLICIES, Link, Wanted, simulate
from hisparse_svc.topk import Recorder, Stream, Synthetic, write_synthetic

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Run

MEASURED = Path(__file__).parents[2] / "benches" / "results" / "swap_in.json"
CONTEXT = 65_536
"""Tokens of each request in the kept measurement."""


def measured() -> list[dict[str, float]]:
    rows = json.loads(MEASURED.read_text(encoding="utf-8"))["swap_in"]
    return [row for row in rows if row["layout"] == "contiguous" and row["requests"] * row["misses"] >= 1000]


def test_the_link_model_is_near_every_measured_swap_in() -> None:
    assert len(measured()) > 12
    for row in measured():
        link = Link(int(row["row_bytes"]), int(row["requests"]), CONTEXT)
        us = row["swap_in"]["us"]  # type: ignore[index]
        assert abs(link.swap_in_us(row["requests"] * row["misses"]) / us - 1) < 0.3, row


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("streams") / "a.topk"
    misses = {256: 0.2, 512: 0.1}
    write_synthetic(path, Synthetic(2048, steps=30, requests=2, layers=3, top_k=128, misses=misses))
    return path


def test_a_stream_worked_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "hand.topk"
    with Recorder(path, layers=[4, 9], top_k=2) as recorder:
        recorder.join("a", tokens=50)
        for step, (left, right) in enumerate([([0, 1], [5, 6]), ([2, 50], [5, 6]), ([0, 3], [5, 6]), ([1, 2], [5, 6])]):
            recorder.record(step, 4, "a", left)
            recorder.record(step, 9, "a", right)
    wanted = Wanted(hot_rows=(3,), policies=("lru", "belady"), skip=1, row_bytes=1000, batch=4, hide_us=6)
    lru, belady = simulate([Stream(path)], wanted)["results"]
    # Layer 4, 3 rows: 0 1 | 2, and 50 is in the newest page | 0 hits, 3 takes the place of 1 | 2 hits, 1 misses.
    assert (lru["misses"], lru["picks"], lru["miss_share"]) == (3, 12, 0.25)
    assert lru["by_layer"] == {"4": 0.5, "9": 0.0}
    assert lru["by_step"] == {"1": 0.25, "2": 0.25, "3": 0.25}
    assert lru["bytes_per_step"] == lru["most_bytes_per_step"] == 4 * 1000
    link = Link(1000, 4, 50)
    assert lru["swap_in_us_per_step"] == round(link.swap_in_us(4) + link.swap_in_us(0), 1)
    assert lru["exposed_us_per_step"] == round(link.swap_in_us(4) - 6, 1)
    assert belady["misses"] == 3, "2, 3, and one of 1 and 2: with three rows it cannot keep all of 0, 1 and 2"


def test_several_files_are_one_batch(stream: Path) -> None:
    one = simulate([Stream(stream)], Wanted(hot_rows=(256,), policies=("lru",)))
    two = simulate([Stream(stream), Stream(stream)], Wanted(hot_rows=(256,), policies=("lru",)))
    (alone,), (both,) = one["results"], two["results"]
    assert (both["misses"], both["miss_share"]) == (2 * alone["misses"], alone["miss_share"])
    assert both["bytes_per_step"] == pytest.approx(2 * alone["bytes_per_step"], abs=1)
    assert two["requests"] == two["batch"] == 4


def test_more_rows_miss_less_and_the_layers_make_the_whole(stream: Path) -> None:
    document = simulate([Stream(stream)], Wanted(hot_rows=(128, 256, 512), skip=5))
    for name in POLICIES:
        shares = [row["miss_share"] for row in document["results"] if row["policy"] == name]
        assert shares == sorted(shares, reverse=True), name
    for row in document["results"]:
        assert sum(row["by_layer"].values()) / 3 == pytest.approx(row["miss_share"], abs=1e-5)
        assert sum(row["by_step"].values()) / 25 == pytest.approx(row["miss_share"], abs=1e-5)


def test_what_does_not_fit_the_stream_is_named_together(stream: Path) -> None:
    with pytest.raises(InvalidInput) as wrong:
        simulate([Stream(stream)], Wanted(hot_rows=(127,), policies=("mru",), skip=-1, batch=0))
    assert [p.field for p in wrong.value.problems] == ["--hot-rows", "--policies", "--batch", "--skip"]
    with pytest.raises(InvalidInput, match="leaves no step to count"):
        simulate([Stream(stream)], Wanted(hot_rows=(128,), skip=30))
    with pytest.raises(InvalidInput, match="is no layer of"):
        simulate([Stream(stream)], Wanted(hot_rows=(128,), layers=(7,)))


def test_the_command_prints_draws_and_keeps_it(cli: Callable[..., Run], stream: Path, tmp_path: Path) -> None:
    plot, out = tmp_path / "p.svg", tmp_path / "d.json"
    flags = ["--hot-rows", "128,256", "--policies", "lru,belady", "--skip", "5", "--layers", "0,2"]
    run = cli("simulate", str(stream), *flags, "--plot", str(plot), "--out", str(out))
    assert run.code == 0, run.err
    assert "belady" in run.out
    assert "<svg" in plot.read_text(encoding="utf-8")
    document = cli("simulate", str(stream), *flags, "--json").document
    assert document == json.loads(out.read_text(encoding="utf-8"))
    assert [(row["hot_rows"], row["policy"]) for row in document["results"]] == [
        (128, "lru"),
        (128, "belady"),
        (256, "lru"),
        (256, "belady"),
    ]
    assert document["layers"] == [0, 2]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([], "FILE is missing: must name a stream"),
        (["README.md"], "is no top-k stream"),
        (["README.md", "--hot-rows", "many"], '--hot-rows is "many": must be numbers with commas between'),
        (["README.md", "--plot", "x.pdf"], "must end in .png or .svg"),
    ],
)
def test_the_command_says_what_is_wrong(cli: Callable[..., Run], flags: list[str], told: str) -> None:
    run = cli("simulate", *flags)
    assert run.code == 2
    assert any(told in error for error in run.errors), run.err
