"""Tests of the kernels need torch; those marked `gpu` a CUDA device. What is missing is a skip with its reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make setup-engine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device on this machine")
    for item in items:
        if "gpu" in item.keywords and Path(__file__).parent in item.path.parents:
            item.add_marker(skip)


@pytest.fixture(params=["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session", autouse=True)
def cubins(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ.setdefault("HISPARSE_CACHE_DIR", str(tmp_path_factory.mktemp("cubin")))
