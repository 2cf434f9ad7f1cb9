"""Page-locking a pool: all or nothing with a stand-in, and in earnest where there is a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hisparse_svc.engine import HostPool
from hisparse_svc.engine.registration import NotRegistered, Registration

if TYPE_CHECKING:
    from collections.abc import Iterator

SEGMENTS = [(4096, 100), (8192, 200), (16384, 300)]


class StandIn:
    """Locks nothing, and refuses the address it is told to."""

    def __init__(self, refused: int = 0, kept: int = 0) -> None:
        self.refused, self.kept = refused, kept
        self.locked: dict[int, int] = {}
        self.undone: list[int] = []

    def register(self, address: int, size: int) -> None:
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
        Registration(SEGMENTS, device)
    assert (device.locked, device.undone) == ({}, [8192, 4096])


def test_one_that_cannot_be_undone_does_not_keep_the_others() -> None:
    device = StandIn(kept=8192)
    registration = Registration(SEGMENTS, device)
    assert device.locked == dict(SEGMENTS)
    with pytest.raises(NotRegistered, match="busy"):
        registration.close()
    assert device.locked == {8192: 200}
    registration.close()


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


def test_cuda_takes_the_pool_and_lets_it_go(pool: HostPool) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
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
