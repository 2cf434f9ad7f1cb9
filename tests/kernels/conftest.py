"""Tests of the kernels need torch: without it they are skipped, and say so."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make setup-engine")
# References run on the CPU: workers that each took every core would wait for one another, ten times as long in all.
torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))))


@pytest.fixture(scope="session", autouse=True)
def cubins(tmp_path_factory: pytest.TempPathFactory) -> None:
    """One folder of cubins for the run: what one worker compiled, another loads."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    os.environ.setdefault("HISPARSE_CACHE_DIR", str(folder / "cubin"))
