"""The Triton backend without a GPU: interpreted, against float64."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.docs.pages import ROOT

pytest.importorskip("triton", reason="triton is not installed: make setup-engine")
OUT_ERROR = 8e-3
"""Of the norm. The interpreter cuts bfloat16 off instead of rounding it; on a GPU 5e-3 is asked."""
LSE_ERROR = 1e-5


def test_interpreted_triton_attends_as_float64_does() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "python"), str(ROOT)])}
    command = [sys.executable, "-W", "ignore", "-m", "tests.kernels.interpreted_triton"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, tuple[float, float]] = json.loads(done.stdout)
    assert len(found) == 12
    for case, (out, lse) in found.items():
        assert out < OUT_ERROR, f"{case}: the output is off by {out:.1e}"
        assert lse < LSE_ERROR, f"{case}: the LSE is off by {lse:.1e}"
