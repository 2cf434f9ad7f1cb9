"""`benches/ranks.py` in small, on the CPU: that it runs, and that what it keeps adds up. Its times say nothing here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

SWAP_INS = "--pool 3MiB --requests 2 --context 512 --hot-rows 128 --top-k 64 --misses 8 --replays 5"
STEPS = "--step-pool 3MiB --step-requests 2 --step-context 512 --step-hot-rows 128 --heads 8"


def test_two_ranks_over_one_pool_are_measured_and_get_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed: make setup-engine")
    out = tmp_path / "ranks.json"
    flags = f"--device cpu --ranks 2 --kv-bytes 64MiB {SWAP_INS} {STEPS} --out {out}"
    program = [sys.executable, "benches/ranks.py", *flags.split()]
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(program, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    kept = json.loads(out.read_text(encoding="utf-8"))
    (made,) = kept["swap_in"]
    assert made["layers"] > 1
    assert [row["shared"] for row in made["rows"]] == [True, False]
    same, _ = made["rows"]
    assert same["bit_equal"]
    assert same["bytes"] == 2 * 8 * 656
    for pool in (made, kept["step"]):
        attached = pool["attached"][0] if "attached" in pool else pool["rows"][0]["attached"]
        assert len(attached["each"]) == 2
        held = attached["held_bytes"]
        assert 0.9 * pool["pool_bytes"] < held < 1.1 * pool["pool_bytes"], f"{held} bytes held by all together"
        assert sum(attached["mapped_bytes"]) > 1.5 * held, "more than one process maps them"
    (step,) = kept["step"]["rows"]
    assert step["bit_equal"]
    assert 0 < step["miss_share"] < 1
