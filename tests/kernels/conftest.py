"""Tests of the kernels need torch: without it they are skipped, and say so."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make setup-engine")


@pytest.fixture(scope="session", autouse=True)
def cubins(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ.setdefault("HISPARSE_CACHE_DIR", str(tmp_path_factory.mktemp("cubin")))
