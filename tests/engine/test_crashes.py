"""What `kill -9` of the service leaves behind: nothing on the machine, and an engine that can tell where it stands."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hisparse_svc import Client, StaleEpoch, Unreachable, aio
from hisparse_svc.engine import HostPool

from tests.conftest import environment
from tests.serve.conftest import Served, start
from tests.serve.test_state_dir import VOLUMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hisparse_svc import Lease

ROW = bytes([5]) * 656


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[], Served]]:
    """Starts services with a small pool, all at one socket, and ends those that still run."""
    started: list[Served] = []

    def one() -> Served:
        started.append(start(tmp_path / "node.sock", "--backing", "memory", "--host-pool", "256MiB", "--http", "off"))
        return started[-1]

    yield one
    for served in started:
        served.close()


def kill(served: Served) -> None:
    served.process.kill()
    served.process.wait(timeout=20)


def pools_mapped_by(pids: list[int]) -> int:
    """Count the segments of pools that these processes map; a process that is gone maps none."""
    texts = [maps.read_text() for pid in pids if (maps := Path(f"/proc/{pid}/maps")).exists()]
    return sum(text.count("hisparse-segment") for text in texts)


def test_an_engine_outlives_its_service_and_goes_on_with_the_next(begin: Callable[[], Served]) -> None:
    first = begin()
    with HostPool.attach(first.target) as pool:
        lease = pool.client.admit(64).commit()
        page = lease.extents[0].first_page
        pool.write_row(3, page=page, row=1, data=ROW)
        kill(first)
        # It goes on with what it has mapped, and its calls say what is wrong.
        assert pool.read_row(3, page=page, row=1) == ROW
        pool.write_row(4, page=page, row=1, data=ROW)
        with pytest.raises(Unreachable):
            pool.client.get_capacity()
        second = begin()
        notice = pool.next_notice(60)
        assert notice is not None
        assert notice[0] == "resumed"
        assert pool.standing == "open"
        assert pool.epoch == int(notice[1]) > lease.epoch
        with HostPool.attach(second.target, role="reader", rank=1) as reader:
            for layer in (3, 4):
                assert reader.read_row(layer, page=page, row=1) == ROW, "the pool is the one it was"
        # From another process it would speak for its session by the token alone.
        with Client(second.target, session=pool.token) as client:
            with pytest.raises(StaleEpoch):
                client.commit(lease.id, lease.epoch)
            now = client.get_lease(lease.id)
            assert (now.epoch, now.extents, now.state) == (pool.epoch, lease.extents, lease.state)
            assert not client.release(now.id).quarantined
            pages = client.get_capacity().pool("host_pages")
            assert pages.free + pages.scrubbing == pool.pages - 1, "nobody holds any; one may be cleaned ahead"


ENGINE = """
    import sys, time
    from hisparse_svc.engine import HostPool

    pool = HostPool.attach(sys.argv[1])
    print("attached", pool.token.hex(), flush=True)
    time.sleep(600)
"""


@contextmanager
def engine(target: str) -> Iterator[tuple[subprocess.Popen[str], bytes]]:
    """An engine that is attached as the writer, and its session's token."""
    command = [sys.executable, "-c", textwrap.dedent(ENGINE), target]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            word, token = process.stdout.readline().split()
            assert word == "attached"
            yield process, bytes.fromhex(token)
        finally:
            process.kill()


def by_thread(target: str, session: bytes | None) -> Lease:
    with Client(target, session=session) as client:
        return client.admit(64).commit()


def by_task(target: str, session: bytes | None) -> Lease:
    async def committed() -> Lease:
        async with aio.Client(target, session=session) as client:
            return await (await client.admit(64)).commit()

    return asyncio.run(committed())


@pytest.mark.parametrize("brings_token", [True, False], ids=["with its token", "without"])
@pytest.mark.parametrize("commit", [by_thread, by_task])
def test_who_brings_an_engines_token_commits_for_its_session(
    commit: Callable[[str, bytes | None], Lease], brings_token: bool, begin: Callable[[], Served]
) -> None:
    served = begin()
    with engine(served.target) as (process, token):
        lease = commit(served.target, token if brings_token else None)
        assert (lease.expires_at is None) == brings_token, "the session keeps it"
        process.kill()
        process.wait(timeout=20)
        expected, over = "quarantined" if brings_token else "committed", time.monotonic() + 5
        with Client(served.target) as client:
            while (state := str(client.get_lease(lease.id).state)) != expected:
                assert time.monotonic() < over, state
                time.sleep(0.02)


def test_both_killed_leave_nothing_and_the_next_one_starts_in_their_place(begin: Callable[[], Served]) -> None:
    def in_shm() -> set[str]:
        names = {path.name for path in Path("/dev/shm").iterdir() if "hisparse" in path.name}  # noqa: S108 - looked at only
        return {name for name in names if not name.startswith(VOLUMES)}  # other tests' own

    before = in_shm()
    first = begin()
    with engine(first.target) as (process, _):
        pids = [first.process.pid, process.pid]
        assert pools_mapped_by(pids) >= 2, "both map the pool"
        kill(first)
    # Segments have no names: with the last process that maps them their memory is gone.
    assert pools_mapped_by(pids) == 0
    assert in_shm() == before
    left = sorted(path.name for path in first.socket.parent.iterdir())
    sockets, kept = ["node.sock", "node.sock.attach"], ["node.sock.epoch", "node.sock.journal", "node.sock.sessions"]
    assert left == sockets + kept, "what the next one replaces, and what it reads"
    second = begin()
    with HostPool.attach(second.target) as pool:
        assert pool.writable
    assert second.end() == 0
    assert sorted(path.name for path in second.socket.parent.iterdir()) == kept
