"""A prefill process fills pages of a lease that a decode process holds."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hisparse_svc import Client, InvalidInput
from hisparse_svc.engine import AttachFailed, HostPool, Import, LeaseNotHeld

from tests.conftest import environment
from tests.engine.test_host_pool import ROW, served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hisparse_svc.client import HeldLease

    from tests.serve.conftest import Served

np = pytest.importorskip("numpy", reason="numpy is not installed: make setup-engine")

__all__ = ["served"]  # a fixture

EXAMPLE = Path(__file__).parents[2] / "examples" / "disaggregated_prefill.py"


@pytest.fixture
def pool(served: Served) -> Iterator[HostPool]:
    with HostPool.attach(served.target) as pool:
        yield pool


@pytest.fixture
def importer(served: Served) -> Iterator[HostPool]:
    """A session that fills pages."""
    with HostPool.attach(served.target, role="importer", rank=1) as importer:
        yield importer


@pytest.fixture
def held(pool: HostPool) -> Iterator[HeldLease]:
    """A reservation of 150 tokens: three pages."""
    with pool.client.admit(120, 30) as held:
        yield held


def _rows(tokens: int, layers: int = 0) -> Any:
    shape = (layers, tokens, ROW) if layers else (tokens, ROW)
    return np.random.default_rng(7).integers(0, 256, shape, dtype=np.uint8)


def _pages(lease: Any) -> list[int]:
    return [page for run in lease.extents for page in range(run.first_page, run.first_page + run.page_count)]


def _fields(act: Callable[[], object]) -> list[str]:
    with pytest.raises(InvalidInput) as raised:
        act()
    return [problem.field for problem in raised.value.problems]


def test_the_example_runs_in_two_processes() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "every row and key is as prefill wrote it" in done.stdout


def test_what_an_importer_writes_the_writer_reads(pool: HostPool, importer: HostPool, held: HeldLease) -> None:
    rows, later, keys = _rows(100), _rows(20), _rows(2 * 64 * 132 // ROW + 1).reshape(-1)[: 2 * 64 * 132]
    with importer.import_pages(held.lease) as pages:
        assert (pages.first_token, pages.end_token) == (0, 192)
        pages.write(5, rows)
        pages.write(5, later, first_token=100)
        pages.write_keys(pool.indexed_layers()[1], keys.reshape(2, -1), first_page=1)
    numbers = _pages(held.lease)
    stored = pool.array(5)[numbers].reshape(-1, ROW)
    assert np.array_equal(stored[:120], np.concatenate([rows, later]))
    assert not stored[120:].any(), "nothing beyond what was given"
    assert np.array_equal(pool.keys_array(pool.indexed_layers()[1])[numbers[1:3]].reshape(-1), keys)
    assert held.commit().id == held.lease.id, "the writer's process commits it"


def test_keys_without_scales_are_written_and_read_one_after_another() -> None:
    with HostPool.embedded(model="minimax-m3", kv_dtype="bfloat16", host_pool="1GiB", kv_bytes="8GiB") as pool:
        layer = pool.indexed_layers()[0]
        assert memoryview(pool.keys(layer)).shape == pool.keys_array(layer).shape == (pool.pages, 64, 256)
        keys = np.random.default_rng(7).integers(0, 256, (1, 64 * 256), dtype=np.uint8)
        with pool.client.admit(120, 8) as held, pool.import_pages(held.lease) as pages:
            assert _fields(lambda: pages.write_keys(layer, keys[:, :64])) == ["keys.shape"]
            pages.write_keys(layer, keys, first_page=1)
            first, second = _pages(held.lease)
            assert np.array_equal(pool.keys_array(layer)[second].reshape(-1), keys[0])
            assert not pool.keys_array(layer)[first].any()


def test_layers_of_a_group_are_written_together(importer: HostPool, held: HeldLease) -> None:
    group = next(group for group in importer.groups() if len(group) > 2)
    rows = _rows(70, 2)
    with importer.import_pages(held.lease) as pages:
        pages.write(group[1], rows, first_token=64)
    first, second, *_ = _pages(held.lease)[1:]
    for index, layer in enumerate(group[1:3]):
        stored = importer.array(layer)
        assert np.array_equal(stored[first], rows[index, :64])
        assert np.array_equal(stored[second, :6], rows[index, 64:])
    assert not importer.array(group[0])[first].any()


def test_torch_rows_are_taken_too(importer: HostPool, held: HeldLease) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: make setup-engine")
    with importer.import_pages(held.lease) as pages:
        pages.write(0, torch.full((3, ROW), 9, dtype=torch.uint8), first_token=63)
    first, second, _ = _pages(held.lease)
    assert importer.array(0)[first, 63].sum() + importer.array(0)[second, :3].sum() == 9 * 3 * ROW


def test_everything_wrong_with_the_rows_is_named_and_nothing_written(importer: HostPool, held: HeldLease) -> None:
    indexed = importer.indexed_layers()[0]
    with importer.import_pages(held.lease) as pages:
        assert _fields(lambda: pages.write(0, _rows(3)[:, :640])) == ["rows.shape"]
        assert _fields(lambda: pages.write(0, _rows(3).astype(np.float32))) == ["rows.dtype"]
        assert _fields(lambda: pages.write(0, _rows(2)[0])) == ["rows.shape", "rows"]
        assert _fields(lambda: pages.write(0, _rows(193))) == ["rows"]
        assert _fields(lambda: pages.write(0, _rows(1), first_token=-1)) == ["rows"]
        assert _fields(lambda: pages.write(0, _rows(1, 9).astype(np.int8), first_token=192)) == [
            "rows.shape",
            "rows.dtype",
            "rows",
        ]
        assert _fields(lambda: pages.write_keys(indexed, _rows(1))) == ["keys.shape"]
        assert _fields(lambda: pages.write_keys(indexed, np.zeros((4, 64 * 132), np.uint8))) == ["keys"]
        with pytest.raises(IndexError):
            pages.write(78, _rows(1))
    assert not importer.array(0).any()


def test_a_lease_that_is_not_held_is_refused(served: Served, importer: HostPool) -> None:
    with Client(served.target) as client:
        with client.admit(64) as other:
            lease = other.lease
        with pytest.raises(LeaseNotHeld, match=r"released|no lease"):
            importer.import_pages(lease)
        with pytest.raises(LeaseNotHeld, match="no lease"):
            importer.import_pages(_changed(lease, id="0123456789abcdef0123"))
        with pytest.raises(LeaseNotHeld, match=r"no lease .* of tenant 'another'"):
            importer.import_pages(_changed(lease, tenant="another"))
    assert _fields(lambda: importer.import_pages(_changed(lease, epoch=lease.epoch - 1))) == ["lease.epoch"]


def test_a_lease_that_ends_meanwhile_is_reported(importer: HostPool, held: HeldLease) -> None:
    def fill() -> None:
        with importer.import_pages(held.lease) as pages:
            pages.write(0, _rows(100))
            held.release()

    with pytest.raises(LeaseNotHeld, match="ended while it was being filled"):
        fill()


def test_pages_released_while_they_are_filled_are_nobody_elses(
    pool: HostPool, importer: HostPool, held: HeldLease
) -> None:
    indexed = importer.indexed_layers()[0]
    pages = importer.import_pages(held.lease)
    pages.write(0, _rows(3))
    assert held.release().quarantined
    assert importer.next_notice(20) == ("quarantined", held.lease.id)
    with pool.client.admit(120, 30) as other:
        assert not set(_pages(other.lease)) & set(_pages(held.lease))
    with pytest.raises(LeaseNotHeld, match="ended while it was being filled"):
        pages.write(0, _rows(5))
    with pytest.raises(LeaseNotHeld, match="ended while it was being filled"):
        pages.write_keys(indexed, np.ones((1, 64 * 132), np.uint8))
    with pytest.raises(LeaseNotHeld), pages:
        pass
    end = time.monotonic() + 20
    while pool.client.get_capacity().pool("host_pages").quarantined:
        assert time.monotonic() < end, "the importer has stopped, so its pages are free"
        time.sleep(0.01)


def test_nothing_is_written_after_the_block(pool: HostPool, importer: HostPool, held: HeldLease) -> None:
    with importer.import_pages(held.lease) as pages:
        pass
    with pytest.raises(LeaseNotHeld, match="call import_pages again"):
        pages.write(0, _rows(3))
    assert not pool.array(0)[_pages(held.lease)].any()


def test_a_reservation_is_kept_alive_between_writes(importer: HostPool, held: HeldLease) -> None:
    held.renew(ttl_s=2.0)
    ends = held.lease.expires_at
    with importer.import_pages(held.lease) as pages:
        pages.write(0, _rows(1))
        assert ends is not None
        assert pages.lease.expires_at is not None
        assert pages.lease.expires_at > ends


def test_readers_and_detached_pools_are_refused(served: Served, held: HeldLease) -> None:
    with (
        HostPool.attach(served.target, role="reader", rank=2) as reader,
        pytest.raises(AttachFailed, match="attach as importer"),
    ):
        reader.import_pages(held.lease)
    importer = HostPool.attach(served.target, role="importer", rank=3)
    pages = importer.import_pages(held.lease)
    importer.close()
    for act in (
        lambda: importer.import_pages(held.lease),
        lambda: pages.write(0, _rows(1)),
        lambda: importer.array(0),
        lambda: importer.read_row(0, page=0, row=0),
        lambda: importer.write_row(0, page=0, row=0, data=bytes(ROW)),
        lambda: importer.rows(0),
        importer.register,
    ):
        with pytest.raises(AttachFailed, match="attach again"):
            act()


def test_shared_pages_cannot_be_written(pool: HostPool, importer: HostPool, held: HeldLease) -> None:
    shared = _changed(importer.client.get_lease(held.lease.id), shared_pages=1)
    pages = Import.__new__(Import)
    pages.__dict__.update(importer.import_pages(shared).__dict__, first_token=64)
    assert _fields(lambda: pages.write(0, _rows(1), first_token=63)) == ["rows"]
    pages.write(0, _rows(1))
    assert pool.array(0)[_pages(held.lease)[1], 0].any()


def _changed(lease: Any, **fields: Any) -> Any:
    import dataclasses  # noqa: PLC0415 - beside its one use

    return dataclasses.replace(lease, **fields)
