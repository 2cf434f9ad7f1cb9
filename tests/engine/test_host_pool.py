"""Engine processes and the service over one copy of a pool."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING

import pytest
from hisparse_svc import Client, HiSparseError, InvalidInput, LeaseState, NotThisEngine
from hisparse_svc.engine import AttachFailed, HostPool

from tests.conftest import environment
from tests.serve.conftest import Served, start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROW = 656


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A service that owns a pool of some 150 pages, with two seats."""
    served = start(tmp_path / "node.sock", "--backing", "memory", "--host-pool", "512MiB", "--http", "off")
    yield served
    assert served.end() == 0
    for pipe in (served.process.stdout, served.process.stderr):
        assert pipe is not None
        pipe.close()


READER = """
    import sys
    from hisparse_svc.engine import HostPool

    def refused(kind, act):
        try:
            act()
        except kind:
            return
        sys.exit(f"{act} was not refused")

    with HostPool.attach(sys.argv[1], role="reader", rank=1) as pool:
        view = memoryview(pool.layer(5))
        assert view.readonly and not pool.writable
        print("attached", flush=True)
        page, byte = map(int, sys.stdin.readline().split())
        assert pool.read_row(5, page=page, row=63) == bytes([byte]) * 656
        assert view[page, 63, 655] == byte and view[page, 62, 655] == 0

        def poke():
            view[page, 63, 0] = 1

        refused(TypeError, poke)
        refused(PermissionError, lambda: pool.write_row(5, page=page, row=63, data=bytes(656)))
        array = pool.array(5)
        assert not array.flags.writeable and int(array[page, 63].sum()) == byte * 656

        def mark_writable():
            array.flags.writeable = True

        refused(ValueError, mark_writable)
        print("checked", flush=True)
        sys.stdin.readline()
"""


def test_two_processes_and_the_service_share_one_copy(served: Served) -> None:
    with HostPool.attach(served.target) as writer:
        reader = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(READER), served.target],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            assert reader.stdout.readline() == "attached\n"
            # Written after the other has mapped it: it sees the same bytes, not a copy of before.
            writer.array(5)[7, 63] = 42
            reader.stdin.write("7 42\n")
            reader.stdin.flush()
            assert reader.stdout.readline() == "checked\n"
            assert writer.read_row(5, page=7, row=63) == bytes([42]) * ROW
            reader.stdin.write("end\n")
        assert reader.returncode == 0


def test_every_layer_has_rows_of_its_own(served: Served) -> None:
    with HostPool.attach(served.target) as pool:
        layers = pool.layers()
        assert (len(layers), len(pool.indexed_layers())) == (78, 21)
        for layer in layers:
            view = memoryview(pool.layer(layer))
            assert view.shape == (pool.pages, 64, ROW)
            view[pool.pages - 1, 63, ROW - 1] = layer + 1
        for layer in layers:
            assert pool.read_row(layer, page=pool.pages - 1, row=63)[-1] == layer + 1
        keys = memoryview(pool.keys(pool.indexed_layers()[0]))
        assert keys.shape == (pool.pages, 64 * 132)
        assert keys.contiguous
        assert bytes(keys).count(0) == keys.nbytes, "index keys are bytes of their own"


def test_what_is_not_there_is_an_error(served: Served) -> None:
    with HostPool.attach(served.target) as pool:
        for act in (
            lambda: pool.layer(78),
            lambda: pool.read_row(0, page=pool.pages, row=0),
            lambda: pool.read_row(0, page=0, row=64),
        ):
            with pytest.raises(IndexError):
                act()
        with pytest.raises(ValueError, match="656"):
            pool.write_row(0, page=0, row=0, data=b"short")
        apart = next(layer for layer in pool.layers() if not memoryview(pool.layer(layer)).contiguous)
        with pytest.raises(BufferError, match="strided"):
            hashlib.sha256(pool.layer(apart))
        with pytest.raises(AttachFailed, match="attach the other ranks as readers"):
            HostPool.attach(served.target)
        with pytest.raises(AttachFailed, match="engines never share a pool"):
            HostPool.attach(served.target, engine_id="another", role="reader")


def test_numpy_takes_it_through_dlpack_too(served: Served) -> None:
    numpy = pytest.importorskip("numpy")
    with HostPool.attach(served.target) as pool:
        array = numpy.from_dlpack(pool.layer(0))
        pool.write_row(0, page=1, row=2, data=bytes([9]) * ROW)
        assert int(array[1, 2].sum()) == 9 * ROW


def test_torch_takes_it_without_a_copy(served: Served) -> None:
    torch = pytest.importorskip("torch")
    with HostPool.attach(served.target) as pool:
        tensor = pool.tensor(0)
        tensor[1, 2] = 9
        assert pool.read_row(0, page=1, row=2) == bytes([9]) * ROW
        assert torch.from_dlpack(pool.layer(0)).data_ptr() == tensor.data_ptr()


def test_a_lease_lives_as_long_as_its_engine(served: Served) -> None:
    with Client(served.target) as client:
        with HostPool.attach(served.target) as pool:
            held = client.admit(64)
            lease = held.commit()
            assert (lease.expires_at, lease.epoch) == (None, pool.epoch)
        assert quarantined(client, lease.id)


def quarantined(client: Client, lease_id: str) -> bool:
    """Wait for it, at most ten seconds."""
    for _ in range(1_000):
        if client.get_lease(lease_id).state is LeaseState.QUARANTINED:
            return True
        time.sleep(0.01)
    return False


ENGINE = """
    import sys, time
    from hisparse_svc.engine import HostPool, Usage

    pool = HostPool.attach(sys.argv[1], engine_id="decode-0")
    held = pool.client.admit(100, 28)
    lease = held.commit()
    page = lease.extents[0].first_page
    pool.write_row(77, page=page, row=63, data=bytes([99]) * 656)
    assert pool.publish(lease, [bytes([1]) * 32]) == 1
    pool.report_usage([Usage(lease.id, tokens=100, hit_rows=7, miss_rows=2)])
    print(pool.token.hex(), lease.id, page, flush=True)
    time.sleep(600)
"""


def test_a_killed_engines_successor_gets_back_what_was_durable(served: Served) -> None:
    engine = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(ENGINE), served.target],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    with engine:
        assert engine.stdout is not None
        token, lease_id, page = engine.stdout.readline().split()
        with Client(served.target) as router:
            assert router.get_lease(lease_id).state is LeaseState.COMMITTED
            engine.kill()
            engine.wait(timeout=20)
            assert quarantined(router, lease_id)
            assert router.get_capacity().pool("host_pages").quarantined == 1, "its published page is shared by now"
        with HostPool.attach(served.target, engine_id="decode-0") as successor:
            with pytest.raises(HiSparseError, match="token"):
                successor.reclaim(bytes(16))
            (back,) = successor.reclaim(bytes.fromhex(token))
            assert (back.lease.id, back.lease.state, back.durable_tokens) == (lease_id, LeaseState.COMMITTED, 64)
            assert successor.read_row(77, page=int(page), row=63) == bytes([99]) * ROW
            assert successor.client.release(lease_id).quarantined is False


def test_an_embedded_pool_serves_its_block() -> None:
    with HostPool.embedded(host_pool="256MiB") as pool:
        assert pool.node is not None
        assert pool.node.client.server_info().backing == "memory"
        pool.write_row(0, page=0, row=0, data=bytes([1]) * ROW)
        node = pool.node
    assert node.wait(0)


def test_an_index_before_the_first_is_an_index_error_as_one_behind_the_last() -> None:
    with HostPool.embedded(host_pool="256MiB") as pool:
        for page in (-1, pool.pages):
            with pytest.raises(IndexError):
                pool.write_row(0, page=page, row=0, data=bytes(656))
            with pytest.raises(IndexError):
                pool.read_row(0, page=page, row=0)
        for ask in (pool.layer, pool.keys, pool.group):
            with pytest.raises(IndexError, match="count from 0"):
                ask(-1)
        with pytest.raises(InvalidInput, match="token"):
            pool.reclaim(b"four")
        with pytest.raises(NotThisEngine, match="has ended here"):
            pool.reclaim(bytes(len(pool.token)))


def test_bad_arguments_are_named_together() -> None:
    with pytest.raises(InvalidInput) as raised:
        HostPool.attach("127.0.0.1:7411", engine_id="", role="owner", rank=-1)  # type: ignore[arg-type]
    assert [problem.field for problem in raised.value.problems] == ["target", "role", "engine_id", "rank"]
    with pytest.raises(AttachFailed, match="--backing memory"):
        HostPool.attach("unix:/nowhere/h.sock")
    with pytest.raises(InvalidInput) as raised:
        HostPool.attach("unix:/tmp/nobody", engine_id=5, rank="0")  # type: ignore[arg-type]
    assert [problem.field for problem in raised.value.problems] == ["engine_id", "rank"]
