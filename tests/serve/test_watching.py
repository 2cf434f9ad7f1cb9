"""A watch outlives its stream: it goes on where it was, or says why it cannot."""

from __future__ import annotations

import asyncio
import contextlib
import json
import selectors
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hisparse_svc import Client, Node, Unreachable, aio
from hisparse_svc.rpc.refusals import Draining

from tests.conftest import environment, run

if TYPE_CHECKING:
    from collections.abc import Iterator


class Cable:
    """Stands between a client and a socket, and can be cut."""

    def __init__(self, near: Path, far: Path) -> None:
        self._near, self._far = near, far
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(near))
        self._listener.listen()
        self._ends: list[socket.socket] = []
        self.connections = 0
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def target(self) -> str:
        return f"unix:{self._near}"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                there = socket.socket(socket.AF_UNIX)
                there.connect(str(self._far))
                self._ends += [here, there]
                self.connections += 1
                self._threads.append(threading.Thread(target=self._carry, args=(here, there)))
                self._threads[-1].start()

    @staticmethod
    def _carry(here: socket.socket, there: socket.socket) -> None:
        with here, there, contextlib.suppress(OSError), selectors.DefaultSelector() as ready:
            ready.register(here, selectors.EVENT_READ, there)
            ready.register(there, selectors.EVENT_READ, here)
            while True:
                for key, _ in ready.select():
                    data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                    if not data:
                        return
                    key.data.sendall(data)

    def cut(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._ends.clear()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        self.cut()
        for thread in self._threads[1:]:
            thread.join()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node.embedded(host_pool="1GiB", backing="none", socket=str(tmp_path / "h.sock")) as node:
        yield node


@pytest.fixture
def cable(node: Node, tmp_path: Path) -> Iterator[Cable]:
    cable = Cable(tmp_path / "cable.sock", Path(node.target.removeprefix("unix:")))
    yield cable
    cable.close()


def test_a_watch_goes_on_after_its_stream_was_cut(node: Node, cable: Cable) -> None:
    with Client(cable.target) as client:
        watch = client.watch_capacity(lengths=[64])
        before = next(watch)
        for held in (10, 20):
            cable.cut()
            node.client.admit(pages=10)
            after = next(watch)
            assert after.pool("host_pages").reserved == held
            assert (after.epoch, after.resync) == (before.epoch, "")
            assert after.sequence > before.sequence
            before = after
        assert cable.connections >= 3
        watch.close()


def test_an_asyncio_watch_goes_on_alike(node: Node, cable: Cable) -> None:
    async def drive() -> None:
        async with aio.Client(cable.target) as client:
            watch = client.watch_capacity()
            await anext(watch)
            cable.cut()
            await asyncio.to_thread(node.client.admit, pages=10)
            after = await anext(watch)
            assert (after.pool("host_pages").reserved, after.resync) == (10, "")
            await watch.aclose()

    asyncio.run(drive())


def test_a_cut_after_which_nothing_changed_gives_nothing_twice(node: Node, cable: Cable) -> None:
    with Client(cable.target) as client:
        watch = client.watch_capacity(lengths=[64])
        before = next(watch)
        threading.Timer(0.1, cable.cut).start()
        admits = threading.Timer(0.8, lambda: node.client.admit(pages=10))
        admits.start()
        after = next(watch)
        admits.join()  # the watch may tell before the call is answered
        assert after.sequence > before.sequence
        assert after.pool("host_pages").reserved == 10
        assert cable.connections >= 2
        watch.close()


def test_a_watch_of_a_service_that_began_anew_says_that_what_was_seen_is_void(tmp_path: Path) -> None:
    path = str(tmp_path / "h.sock")
    with Client(f"unix:{path}") as client:
        with Node.embedded(host_pool="1GiB", backing="none", socket=path):
            watch = client.watch_capacity()
            before = next(watch)
        with Node.embedded(host_pool="1GiB", backing="none", socket=path):
            after = next(watch)
            watch.close()
    assert before.resync == ""
    assert after.epoch > before.epoch
    assert "generation" in after.resync


def test_a_watch_gives_up_when_nobody_comes_back(tmp_path: Path) -> None:
    path = str(tmp_path / "h.sock")
    with Client(f"unix:{path}", timeout_s=1.0) as client:
        with Node.embedded(host_pool="1GiB", backing="none", socket=path):
            watch = client.watch_capacity()
            next(watch)
        begun = time.monotonic()
        with pytest.raises((Unreachable, Draining)):
            next(watch)
        assert time.monotonic() - begun < 5


def says(process: subprocess.Popen[bytes], word: bytes) -> list[bytes]:
    """The lines that a command says until one has a word."""
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    while word not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1], process.communicate()
    return lines


def test_the_command_goes_on_after_its_stream_was_cut(node: Node, cable: Cable) -> None:
    words = ["watch", "--target", cable.target, "--length", "64", "--count", "2", "--json"]
    command = [sys.executable, "-m", "hisparse_svc", *words]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        told = says(process, b"sync")  # with that it knows from where to go on
        cable.cut()
        told += says(process, b"resumed")
        assert cable.connections == 2
        node.client.admit(pages=10)
        rest, failure = process.communicate(timeout=30)
    assert process.returncode == 0, failure
    messages = [json.loads(line) for line in [*told, *rest.splitlines()]]
    assert "snapshot" in messages[0]
    assert [message["sync"] for message in messages if "sync" in message][1:] == [{"resumed": True}]
    pools = {pool["name"]: pool for pool in messages[-1]["delta"]["pools"]}
    assert pools["host_pages"]["reserved"] == 10, messages[-1]


def test_a_watch_of_a_tenant_says_what_that_tenant_would_get() -> None:
    with Node.embedded(host_pool="1GiB", backing="none", tenants="batch: host_pages=..30") as node:
        watch = node.client.watch_capacity(tenant="batch")
        assert next(watch).largest_grant_tokens == 30 * 64
        node.client.admit(pages=10, tenant="batch")
        assert next(watch).largest_grant_tokens == 20 * 64
        watch.close()
        told = run("watch", "--target", node.target, "--tenant", "batch", "--count", "1", "--json")
        assert json.loads(told.out.splitlines()[0])["snapshot"]["largest_grant_tokens"] == 20 * 64
        told = run("watch", "--target", node.target, "--tenant", "x" * 100, "--count", "0", "--length", "8K", "--json")
        assert (told.code, [problem["field"] for problem in told.document["problems"]]) == (2, ["--length", "--count"])
