"""A node with a page, and a browser to look at it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conftest import environment
from tests.page.browser import Browser, found
from tests.serve.conftest import Served, serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["serve"]

LARGE = ("--host-pool", "64GiB", "--kv-bytes", "40GiB", "--hot-rows", "2048", "--http", "127.0.0.1:0")


def page_of(served: Served) -> str:
    """The page's address, as the service said it."""
    return f"{served.http}/"


@pytest.fixture
def large(serve: Callable[..., Served]) -> Served:
    """A node of some 20,000 pages that owns no bytes."""
    return serve(*LARGE)


@pytest.fixture(scope="session")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests."""
    program = found()
    if program is None:
        pytest.skip("no Chromium on this machine: install Debian's `chromium`, or set HISPARSE_CHROMIUM")
    with Browser(program, tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.fixture
def browser(opened: Browser) -> Iterator[Browser]:
    """The browser, which must have nothing to complain of in the end."""
    opened.complaints.clear()
    yield opened
    opened.call("Page.navigate", url="about:blank")
    assert opened.complaints == []


@pytest.fixture
def replay() -> Iterator[Callable[[Served], subprocess.Popen[str]]]:
    """Plays the bundled trace against a node, in a process of its own, until the test is over."""
    running: list[subprocess.Popen[str]] = []

    def begin(served: Served) -> subprocess.Popen[str]:
        words = ["replay", "sample", "--speed", "8", "--target", served.target, "--json"]
        running.append(
            subprocess.Popen(
                [sys.executable, "-m", "hisparse_svc", *words],
                env=environment(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.wait()
