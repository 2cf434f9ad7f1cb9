"""Synthetic streams: the same from the same seed, and as local as was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hisparse_svc.errors import InvalidInput
from hisparse_svc.topk import NEWEST_TOKENS, Locality, Stream, Synthetic, write_synthetic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Run


@pytest.mark.parametrize("misses", [{256: 0.2, 512: 0.1}, {128: 0.5, 200: 0.3, 512: 0.05}])
def test_the_share_of_picks_beyond_a_depth_is_what_was_asked_for(misses: dict[int, float]) -> None:
    locality = Locality(4096, 1, top_k=128, misses=misses, seed=3)
    deeper = dict.fromkeys(misses, 0)
    for _ in range(50):
        stack = locality.stacks[0]
        depth = np.empty(len(stack), dtype=int)
        depth[stack] = np.arange(len(stack))
        picks = locality.step(0)
        assert len(set(picks.tolist())) == 128
        for rows in misses:
            deeper[rows] += int((depth[picks] >= rows).sum())
    for rows, share in misses.items():
        assert abs(deeper[rows] / (50 * 128) - share) < 0.01, rows


def test_a_synthetic_stream_picks_the_newest_tokens_and_repeats_by_its_seed(tmp_path: Path) -> None:
    wanted = Synthetic(context=1024, steps=70, requests=2, layers=2, top_k=128, misses={256: 0.2, 512: 0.1}, seed=5)
    for name in ("a", "b"):
        write_synthetic(tmp_path / name, wanted)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    write_synthetic(tmp_path / "c", Synthetic(**{**wanted.source(), "seed": 6}))
    assert (tmp_path / "a").read_bytes() != (tmp_path / "c").read_bytes()
    stream = Stream(tmp_path / "a")
    assert stream.source["seed"] == 5
    lanes = stream.lanes()
    assert len(lanes) == 4
    left_newest_page = set()
    for lane in lanes:
        for length, picks, older in zip(lane.lengths, lane.picks, lane.older(), strict=True):
            assert len(picks) == 128
            assert set(range(max(1024, length - NEWEST_TOKENS), length)) <= set(picks.tolist())
            left_newest_page |= set(older[older >= 1024].tolist())
    assert left_newest_page, "a token that has left the newest page may be picked"


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"context": 3000}, "context"),
        ({"steps": 0}, "steps"),
        ({"top_k": 56, "context": 4096}, "context"),
        ({"misses": {4096: 0.1}}, "misses"),
        ({"misses": {4096: 0.1, 8192: 0.2}}, "misses"),
        ({"misses": {4096: 0.5, 4100: 0.001}}, "misses"),
    ],
)
def test_what_cannot_be_drawn_is_refused(changed: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput) as wrong:
        Synthetic(**changed)  # type: ignore[arg-type]
    assert {problem.field for problem in wrong.value.problems} == {field}


def test_trace_topk_writes_a_stream_and_says_what_it_holds(cli: Callable[..., Run], tmp_path: Path) -> None:
    path = str(tmp_path / "a.topk")
    flags = "--context=1024 --steps=6 --requests=2 --layers=3 --top-k=128 --misses=256:0.2,512:0.1 --seed=7"
    written = cli("trace-topk", *flags.split(), "--out", path, "--json").document
    assert written["picks"] == 6 * 2 * 3 * 128
    assert written["source"]["misses"] == {"256": 0.2, "512": 0.1}
    assert cli("trace-topk", path, "--json").document == written
    assert "4,608" in cli("trace-topk", path).out


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("", "FILE is none"),
        ("a.topk --seed 3", "--seed is given: is of the stream that --out writes"),
        ("--out no/such/folder", "must lie in a folder that exists"),
        ("--out x --misses 3", '--misses is "3": must be ROWS:SHARE'),
        ("--out x --steps many", "--steps is 'many': must be a whole number"),
        ("pyproject.toml", "is no top-k stream of version 1"),
    ],
)
def test_trace_topk_says_what_is_wrong(cli: Callable[..., Run], flags: str, told: str) -> None:
    run = cli("trace-topk", *flags.split())
    assert run.code == 2
    assert any(told in error for error in run.errors), run.err
