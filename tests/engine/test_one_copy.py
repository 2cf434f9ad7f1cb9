"""One copy of the pool for the service and every rank, and ranks that run as other users."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hisparse_svc.bench.shared import pool_bytes
from hisparse_svc.engine import AttachFailed, HostPool

from tests.conftest import environment
from tests.serve.conftest import Served, start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROW = 656
NOBODY = 65534
POOL = ("--backing", "memory", "--host-pool", "256MiB", "--http", "off")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user reaches, which pytest's own is not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def serve(open_folder: Path) -> Iterator[Callable[..., Served]]:
    """Starts services with a small pool, one after the other, and ends the last one."""
    started: list[Served] = []

    def begin(*flags: str) -> Served:
        for served in started:
            end(served)
        started[:] = [start(open_folder / "node.sock", *POOL, *flags)]
        return started[0]

    yield begin
    for served in started:
        end(served)


def end(served: Served) -> None:
    assert served.end() == 0
    for pipe in (served.process.stdout, served.process.stderr):
        assert pipe is not None
        pipe.close()


RANK = """
    import sys
    from hisparse_svc.engine import HostPool

    with HostPool.attach(sys.argv[1], role="reader", rank=int(sys.argv[2])) as pool:
        for layer in pool.layers():
            view = memoryview(pool.layer(layer))
            seen = sum(view[page, 0, 0] for page in range(pool.pages))
        # Touch every page of every segment, as a rank does in time.
        import numpy
        total = sum(int(pool.array(layer)[:, :, ::512].sum()) for layer in pool.layers())
        print("touched", flush=True)
        sys.stdin.readline()
"""


def test_the_service_and_two_ranks_hold_one_copy_between_them(serve: Callable[..., Served]) -> None:
    pytest.importorskip("numpy")
    served = serve()
    (segment,) = served.client().server_info().segments
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(RANK), served.target, str(rank)],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "touched\n"
        each = [pool_bytes(pid) for pid in (served.process.pid, ranks[0].pid, ranks[1].pid)]
    finally:
        for rank in ranks:
            rank.communicate("end\n", timeout=20)
    whole, shares = [whole for whole, _ in each], sum(share for _, share in each)
    assert min(whole) > 0.9 * segment.bytes, f"each maps all of it: {each}"
    assert 0.95 * segment.bytes < shares < 1.05 * segment.bytes, f"together they hold it once: {each}"


OTHER_USER = """
    import os, sys
    from hisparse_svc.engine import AttachFailed, HostPool

    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
    with HostPool.attach(sys.argv[1], role="reader", rank=1) as pool:
        print(pool.read_row(5, page=7, row=63)[0], flush=True)
        # The library alone keeps it from writing here; that the kernel does is tried in the memory crate's tests.
        try:
            pool.write_row(5, page=7, row=63, data=bytes(656))
        except PermissionError:
            print("refused", flush=True)
"""


def as_user(target: str, uid: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(OTHER_USER), target, str(uid)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.skipif(os.getuid() != 0, reason="only root can run a rank as another user")
def test_a_rank_of_a_listed_user_reads_and_others_are_not_let_in(serve: Callable[..., Served]) -> None:
    served = serve("--allow-uid", f"12345,{NOBODY}")
    with HostPool.attach(served.target) as writer:
        writer.write_row(5, page=7, row=63, data=bytes([42]) * ROW)
        told = as_user(served.target, NOBODY)
        assert told.stdout.split() == ["42", "refused"], told.stderr
        stranger = as_user(served.target, NOBODY - 1)
        assert stranger.returncode != 0
        assert "allow its uid" in stranger.stderr
    served = serve()
    alone = as_user(served.target, NOBODY)
    assert alone.returncode != 0, "without the flag only the service's own user may attach"


def test_a_readers_views_are_marked_read_only_whichever_way_they_are_taken(serve: Callable[..., Served]) -> None:
    numpy = pytest.importorskip("numpy")
    served = serve()
    with HostPool.attach(served.target) as writer, HostPool.attach(served.target, role="reader", rank=1) as reader:
        for pool, readonly in ((writer, False), (reader, True)):
            for layer in (pool.layer(0), pool.keys(0)):
                assert memoryview(layer).readonly is readonly
                assert numpy.from_dlpack(layer).flags.writeable is not readonly
        with pytest.raises(BufferError):
            reader.layer(0).__dlpack__()  # a consumer of the protocol's first version cannot be told
        with pytest.raises(AttachFailed, match="read-only"):
            reader.tensor(0)
