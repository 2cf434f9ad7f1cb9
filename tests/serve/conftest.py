"""A real server in a process of its own, as a user starts it."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hisparse_svc import Client

from tests.conftest import Run, environment, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SMALL = ("--backing", "none", "--host-pool", "1GiB", "--http", "off")
"""310 pages of GLM-5.2: 19,840 tokens; their bytes are only made where a test is about them."""


def small(*flags: str) -> tuple[str, ...]:
    """`SMALL` without what `flags` say otherwise: no flag may be given twice."""
    kept = [pair for pair in zip(SMALL[::2], SMALL[1::2], strict=True) if pair[0] not in flags]
    return tuple(part for pair in kept for part in pair)


@dataclass
class Served:
    """A running server."""

    process: subprocess.Popen[str]
    socket: Path
    ready: str
    clients: list[Client] = field(default_factory=list)

    @property
    def target(self) -> str:
        return f"unix:{self.socket}"

    @property
    def http(self) -> str:
        """The address of its HTTP port, as it said."""
        address = re.search(r"http://[0-9.:]+", self.ready)
        assert address is not None, self.ready
        return address[0]

    def waiters(self) -> int:
        """Calls that wait for room; needs its HTTP port."""
        with urllib.request.urlopen(f"{self.http}/metrics", timeout=10) as answer:
            told = re.search(r"^hisparse_waiters (\d+)$", answer.read().decode(), re.MULTILINE)
        assert told is not None
        return int(told[1])

    def client(self, **options: Any) -> Client:
        self.clients.append(Client(self.target, **options))
        return self.clients[-1]

    def cli(self, command: str, *arguments: str) -> Run:
        return run(command, *arguments, "--target", self.target)

    def end(self) -> int:
        for client in self.clients:
            client.close()
        self.process.terminate()
        return self.process.wait(timeout=20)

    def close(self) -> None:
        """End it where it still runs; what it said is not read any more."""
        if self.process.poll() is None:
            self.end()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


def start(socket: Path, *flags: str, **variables: str) -> Served:
    process = subprocess.Popen(
        [sys.executable, "-m", "hisparse_svc", "serve", "--socket", str(socket), *flags],
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    ready = process.stdout.readline()
    if not ready:
        _, told = process.communicate(timeout=20)
        pytest.fail(f"the server did not start: {told}")
    return Served(process, socket, ready)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Starts servers, each on `NAME.sock` of the test's own folder, and ends those that still run."""
    started: list[Served] = []

    def begin(*flags: str, name: str = "node", **variables: str) -> Served:
        started.append(start(tmp_path / f"{name}.sock", *small(*flags), *flags, **variables))
        return started[-1]

    yield begin
    for served in started:
        served.close()


@pytest.fixture
def node(serve: Callable[..., Served]) -> Served:
    """One small server."""
    return serve()


@pytest.fixture
def client(node: Served) -> Client:
    """A client to it."""
    return node.client()
