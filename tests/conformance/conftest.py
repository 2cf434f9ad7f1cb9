"""Services for the suite: a fresh one that only counts pages, and what runs cases against it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.serve.conftest import SMALL, Served, serve, start

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["serve"]


@pytest.fixture(scope="package")
def ledger_only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One small server for all tests here; each leaves it as it was."""
    served = start(tmp_path_factory.mktemp("ledger") / "node.sock", *SMALL)
    yield served
    end(served)


@pytest.fixture(scope="package")
def with_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that owns its pages, on its socket and on a port of loopback."""
    flags = ("--host-pool", "1GiB", "--http", "off", "--listen", "127.0.0.1:0")
    served = start(tmp_path_factory.mktemp("memory") / "node.sock", *flags)
    yield served
    end(served)


def end(served: Served) -> None:
    assert served.end() == 0
    for pipe in (served.process.stdout, served.process.stderr):
        assert pipe is not None
        pipe.close()
