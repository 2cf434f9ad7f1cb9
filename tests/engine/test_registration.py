"""Page-locking a pool: all or nothing with a stand-in, and in earnest where there is a GPU."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Literal

import pytest
from hisparse_svc.bench.shared import pool_bytes
from hisparse_svc.engine import HostPool
from hisparse_svc.engine.registration import Cuda, NotRegistered, Registration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHUNKS = [(4096, 100), (8192, 200), (16384, 300)]
GIB = 1 << 30


class StandIn:
    """Locks nothing, and refuses the address it is told to."""

    def __init__(self, refused: int = 0, kept: int = 0) -> None:
        self.refused, self.kept = refused, kept
        self.locked: dict[int, int] = {}
        self.undone: list[int] = []
        self.read_only: bool | None = None

    def register(self, address: int, size: int, *, read_only: bool) -> None:
        self.read_only = read_only
        if address == self.refused:
            raise NotRegistered("out of memory")
        self.locked[address] = size

    def unregister(self, address: int) -> None:
        self.undone.append(address)
        if address == self.kept:
            raise NotRegistered("busy")
        del self.locked[address]


def test_a_refused_segment_undoes_those_before_it() -> None:
    device = StandIn(refused=16384)
    with pytest.raises(NotRegistered, match="out of memory"):
        Registration(lambda _: CHUNKS, device)
    assert (device.locked, device.undone) == ({}, [8192, 4096])


def test_one_that_cannot_be_undone_does_not_keep_the_others() -> None:
    device = StandIn(kept=8192)
    registration = Registration(lambda _: CHUNKS, device)
    assert device.locked == dict(CHUNKS)
    with pytest.raises(NotRegistered, match="busy"):
        registration.close()
    assert device.locked == {8192: 200}
    registration.close()


class Pins(StandIn):
    """Locks at most so much at a time, as some kernels do."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.refusals = most, 0

    def register(self, address: int, size: int, *, read_only: bool) -> None:
        if size > self.most:
            self.refusals += 1
            raise NotRegistered("out of memory")
        super().register(address, size, read_only=read_only)


def in_chunks(total: int) -> Callable[[int], list[tuple[int, int]]]:
    return lambda most: [(4096 + start, min(most, total - start)) for start in range(0, total, most)]


def test_a_device_that_pins_little_at_a_time_gets_it_in_halves() -> None:
    device = Pins(2 * GIB)
    registration = Registration(in_chunks(40 * GIB), device)
    assert sum(device.locked.values()) == 40 * GIB
    assert max(device.locked.values()) <= 2 * GIB
    registration.close()
    assert device.locked == {}
    hopeless = Pins(GIB // 2)
    with pytest.raises(NotRegistered):
        Registration(in_chunks(40 * GIB), hopeless)
    assert (hopeless.locked, hopeless.refusals) == ({}, 7), "64, 20, 10, 5, 2.5, 1.25 and 1 GiB"


def test_a_driver_that_hangs_does_not_hang_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hisparse_svc.engine.registration.DEADLINE_S", 0.1)
    goes_on = threading.Event()

    class Hangs(StandIn):
        def unregister(self, address: int) -> None:
            goes_on.wait(20)
            super().unregister(address)

    registration = Registration(lambda _: CHUNKS, Hangs())
    with pytest.raises(NotRegistered, match="within"):
        registration.close()
    goes_on.set()


def test_chunks_end_where_layers_do_and_cover_every_byte(pool: HostPool) -> None:
    attached = pool._attached
    (whole,) = attached.chunks(64 * GIB)
    small = attached.chunks(16 << 20)
    assert len(small) > 10
    assert small[0][0] == whole[0]
    for (start, size), (after, _) in itertools.pairwise(small):
        assert start + size == after
        assert (start - whole[0]) % 4096 == 0
        assert size <= 16 << 20
    assert sum(size for _, size in small) == whole[1]


def test_a_readers_memory_is_registered_for_reading_and_given_to_the_swap_in(pool: HostPool) -> None:
    pytest.importorskip("torch")
    assert pool.node is not None
    roles: list[tuple[Literal["reader", "writable_reader"], bool]] = [("reader", True), ("writable_reader", False)]
    for role, read_only in roles:
        with HostPool.attach(pool.node.target, role=role, rank=1) as rank:
            device = StandIn()
            rank.register(device)
            assert device.read_only is read_only
            rows = rank.rows(0)
            pool.write_row(0, page=5, row=1, data=bytes([6]) * 656)
            assert int(rows.view[5, 1, 0, 655]) == 6
            assert rows.read_only, "whichever way it is mapped, a reader backs nothing up"
            with pytest.raises(PermissionError):
                rank.write_row(0, page=5, row=1, data=bytes(656))
            assert memoryview(rank.layer(0)).readonly


@pytest.fixture
def pool() -> Iterator[HostPool]:
    with HostPool.embedded(host_pool="256MiB") as pool:
        yield pool


def test_a_pool_is_locked_once_and_let_go_when_it_closes(pool: HostPool) -> None:
    device = StandIn()
    pool.register(device)
    pool.register(device)
    assert sum(device.locked.values()) > 256 * 0.98 * (1 << 20)
    pool.close()
    assert device.locked == {}


def test_every_page_is_mapped_before_it_is_locked(pool: HostPool) -> None:
    mapped: list[int] = []

    class Looks(StandIn):
        def register(self, address: int, size: int, *, read_only: bool) -> None:
            mapped.append(pool_bytes(os.getpid())[0])
            super().register(address, size, read_only=read_only)

    before, device = pool_bytes(os.getpid())[0], Looks()  # the node in this process maps it too
    pool.register(device)
    locked = sum(device.locked.values())
    assert locked <= mapped[0] - before < locked + 4096, "whole pages of it"


def test_a_group_is_every_layer_of_it_side_by_side(pool: HostPool) -> None:
    pytest.importorskip("torch")
    groups = pool.groups()
    assert sorted(layer for group in groups for layer in group) == pool.layers()
    group = next(group for group in groups if len(group) == 4)
    rows = pool.rows(group[1])
    assert (rows.pages, rows.layers, rows.row_bytes) == (pool.pages, 4, 656)
    rows.view[3, 63, 1] = 8
    assert pool.read_row(group[1], page=3, row=63) == bytes([8]) * 656
    assert pool.read_row(group[2], page=3, row=63) == bytes(656)


gpu = pytest.mark.gpu


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@gpu
def test_cuda_takes_the_pool_and_lets_it_go(pool: HostPool, torch: Any) -> None:
    rows = pool.rows(pool.groups()[-1][0]).view
    assert not rows.is_pinned()
    pool.register()
    assert rows.is_pinned()
    assert rows[-1, -1].is_pinned()
    rows[2, 5] = 77
    assert int(rows[2, 5].to("cuda", non_blocking=True).sum().item()) == 77 * rows[2, 5].numel()
    torch.cuda.synchronize()
    pool.close()
    assert not rows.is_pinned()


@gpu
def test_cuda_takes_a_readers_memory_for_reading_or_says_what_to_do(pool: HostPool, torch: Any) -> None:
    assert pool.node is not None
    pool.write_row(0, page=5, row=1, data=bytes([6]) * 656)
    with HostPool.attach(pool.node.target, role="reader", rank=1) as reader:
        if Cuda().takes_read_only:
            reader.register()
            row = reader.rows(0).view[5, 1, 0]
            assert row.is_pinned()
            assert int(row.to("cuda").sum()) == 6 * 656
        else:
            with pytest.raises(NotRegistered, match="writable_reader"):
                reader.register()
    with HostPool.attach(pool.node.target, role="writable_reader", rank=1) as reader:
        reader.register()
        assert int(reader.rows(0).view[5, 1, 0].to("cuda").sum()) == 6 * 656
    torch.cuda.synchronize()


@gpu
def test_a_refusal_of_cuda_leaves_nothing_registered_and_no_error_behind(pool: HostPool, torch: Any) -> None:
    from cuda.bindings import runtime  # noqa: PLC0415 - only where an engine has it

    device = Cuda()
    (address, size), *_ = pool._attached.chunks(64 * GIB)  # to break the second chunk
    half = size // 2 // 4096 * 4096
    with pytest.raises(NotRegistered, match="page-lock"):
        Registration(lambda _: [(address, half), (4096, 4096)], device)
    assert runtime.cudaPeekAtLastError() == (runtime.cudaError_t.cudaSuccess,)
    assert int(torch.ones(3, device="cuda").sum()) == 3
    pool.register()  # the first half is free again, or this would be refused


@gpu
@pytest.mark.usefixtures("torch")
def test_other_threads_run_while_cuda_registers(capsys: pytest.CaptureFixture[str]) -> None:
    with HostPool.embedded(host_pool="4GiB", kv_bytes="80GiB") as pool:
        turns, done = 0, threading.Event()

        def count() -> None:
            nonlocal turns
            while not done.is_set():
                turns += 1
                time.sleep(0.001)

        device = Cuda()
        counter = threading.Thread(target=count)
        counter.start()
        before, started = turns, time.monotonic()
        pool.register(device)
        took, counted = time.monotonic() - started, turns - before
        done.set()
        counter.join()
        assert counted > took / 0.001 / 20, f"{counted} turns in {took:.2f} s"
        with capsys.disabled():
            sys.stdout.write(f"registered 4 GiB in {took:.2f} s, in which another thread had {counted} turns\n")
