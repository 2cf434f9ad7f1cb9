"""A wrong argument is an exception that says so, before anything is launched."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from hisparse_svc import InvalidInput
from hisparse_svc.engine import MLA_FP8, HostPool, HotCache, RowFormat, park_seat, partition_stream, swap_in
from hisparse_svc.kernels import (
    DeviceUnavailable,
    Geometry,
    HostRows,
    IndexKeys,
    append,
    append_index_keys,
    backup,
    backup_pages,
    check_ids,
    gather,
    gather_blocks,
    resolve,
    write_index_keys,
)

from tests.kernels.refused import refused_fields

if TYPE_CHECKING:
    from collections.abc import Callable

GEOMETRY = Geometry(seats=2, hot_rows=64, top_k=16, context_tokens=512)


@pytest.fixture
def cache(device: str) -> HotCache:
    return HotCache(GEOMETRY, [2], MLA_FP8, device)


@pytest.fixture
def host(device: str) -> HostRows:
    return HostRows.allocate(8, 2, 656, pinned=device != "cpu")


def test_every_wrong_tensor_is_named_at_once(cache: HotCache) -> None:
    plan = replace(cache.plan, rows=cache.plan.rows.long(), counts=cache.plan.counts[:1])
    state = replace(cache.state, lengths=cache.state.lengths.int())
    found = refused_fields(lambda: resolve(GEOMETRY, cache.words[0, :, ::2], state, plan))
    assert found == ["words.shape", "words.stride", "state.lengths.dtype", "plan.rows.dtype", "plan.counts.shape"]


def test_words_of_another_width_are_refused(cache: HotCache) -> None:
    assert refused_fields(lambda: resolve(GEOMETRY, cache.words[0].long(), cache.state, cache.plan)) == ["words.dtype"]


def test_hot_rows_of_another_group_are_refused(cache: HotCache, host: HostRows) -> None:
    call = lambda: gather(GEOMETRY, host, cache.rows[0][:1], cache.state, cache.plan)  # noqa: E731
    assert refused_fields(call) == ["hot.shape"]


def test_unaligned_rows_are_refused(cache: HotCache, host: HostRows) -> None:
    wide = torch.empty((2, 256, 680), dtype=torch.uint8, device=cache.device)
    shifted = wide[..., 8:664]
    assert refused_fields(lambda: gather(GEOMETRY, host, shifted, cache.state, cache.plan)) == ["hot.stride"]
    spread = torch.empty((2, 256, 1312), dtype=torch.uint8, device=cache.device)[..., ::2]
    assert "hot.stride" in refused_fields(lambda: gather(GEOMETRY, host, spread, cache.state, cache.plan))


@pytest.mark.parametrize("layers", [range(0), range(3), range(1, 3), range(0, 2, 2), range(-1, 1)])
def test_layers_outside_the_group_are_refused(cache: HotCache, host: HostRows, layers: range) -> None:
    assert refused_fields(lambda: gather(GEOMETRY, host, cache.rows[0], cache.state, cache.plan, layers=layers)) == [
        "layers"
    ]


@pytest.mark.parametrize("blocks", [-1, 3, 12, 64])
def test_grids_that_no_cluster_fits_are_refused(cache: HotCache, host: HostRows, blocks: int) -> None:
    assert refused_fields(lambda: gather(GEOMETRY, host, cache.rows[0], cache.state, cache.plan, blocks=blocks)) == [
        "blocks"
    ]


def test_host_rows_must_be_bytes_in_host_memory_aligned_and_apart() -> None:
    good = torch.empty((3, 64, 2, 672), dtype=torch.uint8)
    assert HostRows(good[..., :656]).layer_pitch == 672
    assert refused_fields(lambda: HostRows(good.int())) == ["host.dtype"]
    assert refused_fields(lambda: HostRows(good[:, :32])) == ["host.shape"]
    assert refused_fields(lambda: HostRows(good[:0])) == ["host.shape"]
    assert refused_fields(lambda: HostRows(good[..., :660])) == ["host.row_bytes"]
    assert refused_fields(lambda: HostRows(good[..., 8:664])) == ["host.address"]
    assert refused_fields(lambda: HostRows(good.as_strided((3, 64, 2, 656), (672 * 128, 640, 656, 1)))) == [
        "host.stride"
    ]
    assert "host.pages" in refused_fields(lambda: HostRows(good.as_strided((2**26, 64, 1, 656), (0, 656, 656, 1))))
    assert "host.stride" in refused_fields(lambda: HostRows(torch.empty((3, 64, 2, 1312), dtype=torch.uint8)[..., ::2]))


@pytest.mark.gpu
def test_pageable_host_memory_is_refused_for_a_gpu() -> None:
    cache = HotCache(GEOMETRY, [1], MLA_FP8, "cuda:0")
    pageable = HostRows(torch.empty((8, 64, 1, 656), dtype=torch.uint8))
    assert refused_fields(lambda: gather(GEOMETRY, pageable, cache.rows[0], cache.state, cache.plan)) == ["host"]


@pytest.mark.gpu
def test_a_pool_that_was_detached_is_refused_for_a_gpu() -> None:
    cache = HotCache(Geometry(seats=2, hot_rows=64, top_k=16, context_tokens=128), [1], MLA_FP8, "cuda:0")
    cache.take_seat(0, [0, 1], 100)
    cache.plan.seats[:] = torch.tensor([0, -1])
    cache.plan.picks[0, 0] = torch.arange(16)
    with HostPool.embedded(host_pool="256MiB") as pool:
        layer = next(group[0] for group in pool.groups() if len(group) == 1)
        pool.register()
        rows = pool.rows(layer)
        pool.write_row(layer, page=0, row=3, data=bytes([9]) * 656)
        swap_in(cache, 0, rows).wait()
        assert int(cache.rows[0][0, int(cache.plan.rows[0, 0, 3])].sum()) == 9 * 656
    assert refused_fields(lambda: swap_in(cache, 0, rows)) == ["host"]


@pytest.mark.gpu
def test_ids_out_of_range_reach_no_memory() -> None:
    """What `check_ids` finds and a step does not look for: nothing is copied, and no error is left behind."""
    cache, host = HotCache(GEOMETRY, [2], MLA_FP8, "cuda:0"), HostRows.allocate(8, 2, 656, pinned=True)
    before = cache.rows[0].clone()
    cache.plan.misses[:] = torch.tensor([2**30, 2**31 - 1], dtype=torch.int32)
    cache.plan.counts[:] = 2**31 - 1
    gather(GEOMETRY, host, cache.rows[0], cache.state, cache.plan)
    cache.plan.misses[:] = torch.tensor([-5, -1], dtype=torch.int32)
    gather(GEOMETRY, host, cache.rows[0], cache.state, cache.plan)
    cache.plan.seats[:] = torch.tensor([7, -9])
    resolve(GEOMETRY, cache.words[0], cache.state, cache.plan)
    backup(GEOMETRY, host, cache.rows[0], cache.state, cache.plan)
    cache.plan.seats[:] = torch.tensor([0, 1])
    cache.state.page_map[:] = 2**31 - 1
    cache.state.lengths[:] = 100
    backup(GEOMETRY, host, cache.rows[0], cache.state, cache.plan)
    torch.cuda.synchronize()
    assert torch.equal(cache.rows[0], before)


@pytest.mark.gpu
def test_tensors_of_two_devices_are_refused() -> None:
    cache, other = HotCache(GEOMETRY, [1], MLA_FP8, "cuda:0"), HotCache(GEOMETRY, [1], MLA_FP8, "cpu")
    found = refused_fields(lambda: resolve(GEOMETRY, cache.words[0], other.state, cache.plan))
    assert found == [f"state.{name}.device" for name in ("lengths", "mapped_pages", "newest_from", "page_map")]


def test_new_rows_must_fit_the_batch(cache: HotCache, host: HostRows) -> None:
    rows = torch.zeros((3, 1, 656), dtype=torch.uint8, device=cache.device)
    assert refused_fields(lambda: append(GEOMETRY, cache.rows[0][0], cache.state, cache.plan, rows)) == ["rows.shape"]
    many = torch.zeros((2, 9, 656), dtype=torch.uint8, device=cache.device)
    assert refused_fields(lambda: append(GEOMETRY, cache.rows[0][0], cache.state, cache.plan, many)) == ["query_rows"]
    call = lambda: backup(GEOMETRY, host, cache.rows[0], cache.state, cache.plan, query_rows=0)  # noqa: E731
    assert refused_fields(call) == ["query_rows"]


def test_tensors_of_other_dimensions_are_told_which_they_need(cache: HotCache, host: HostRows) -> None:
    def told(call: Callable[[], object]) -> str:
        with pytest.raises(InvalidInput) as raised:
            call()
        return str(raised.value)

    rows = torch.zeros((2, 656), dtype=torch.uint8, device=cache.device)
    pages = torch.tensor([1], dtype=torch.int32, device=cache.device)
    keys, values = IndexKeys.allocate(2, cache.device), torch.zeros((1, 3, 128), device=cache.device)
    for call, wanted in (
        (lambda: append(GEOMETRY, cache.rows[0][0], cache.state, cache.plan, rows), "[2, query row, 656]"),
        (lambda: backup_pages(GEOMETRY, host, rows, pages), "[layer, token, 656]"),
        (lambda: write_index_keys(keys, values, pages), "[token, 128]"),
        (lambda: append_index_keys(GEOMETRY, keys, cache.state, cache.plan, values[0]), "[2, query row, 128]"),
    ):
        assert f"must be {wanted}; pass" in told(call)
    none = torch.zeros((2, 0, 656), dtype=torch.uint8, device=cache.device)
    assert "tokens is 0: must be at least 1; leave the call out" in told(
        lambda: backup_pages(GEOMETRY, host, none, pages)
    )
    nobody = cache.plan.first(0)
    assert "plan.batch is 0: must be 1 to 1024; leave the call out" in told(
        lambda: resolve(GEOMETRY, cache.words[0], cache.state, nobody)
    )


def test_bulk_rows_must_have_pages(cache: HotCache, host: HostRows) -> None:
    rows = torch.zeros((2, 100, 656), dtype=torch.uint8, device=cache.device)
    pages = torch.tensor([1, 2], dtype=torch.int32, device=cache.device)
    backup_pages(GEOMETRY, host, rows, pages, first_token=28)
    assert refused_fields(lambda: backup_pages(GEOMETRY, host, rows, pages, first_token=29)) == ["tokens"]
    assert refused_fields(lambda: backup_pages(GEOMETRY, host, rows, pages.long())) == ["pages.dtype"]
    assert refused_fields(lambda: backup_pages(GEOMETRY, host, rows, pages, first_layer=1)) == ["layers"]


def test_ids_are_checked_where_a_caller_can_wait(cache: HotCache) -> None:
    cache.take_seat(0, [3, 4], 100)
    plan, state = cache.plan, cache.state
    plan.seats[0] = 0
    plan.picks[0, 0, 0] = 99
    check_ids(GEOMETRY, state, plan, 8)
    plan.picks[0, 0, 0] = 100
    assert refused_fields(lambda: check_ids(GEOMETRY, state, plan)) == ["plan.picks"]
    plan.picks[0, 0, 0] = -2
    assert refused_fields(lambda: check_ids(GEOMETRY, state, plan, 4)) == ["plan.picks", "state.page_map"]
    plan.seats[1] = 0
    assert "plan.seats" in refused_fields(lambda: check_ids(GEOMETRY, state, plan))
    plan.seats[1] = 2
    assert refused_fields(lambda: check_ids(GEOMETRY, state, plan)) == ["plan.seats"]


def test_swap_in_refuses_what_is_not_of_this_cache(cache: HotCache, host: HostRows) -> None:
    assert refused_fields(lambda: swap_in(cache, 1, host)) == ["group"]
    assert refused_fields(lambda: swap_in(cache, 0, host, 3, first_layers=3)) == ["batch", "first_layers"]
    assert refused_fields(lambda: swap_in(cache, 0, host, expected_misses=-1)) == ["expected_misses"]
    assert refused_fields(lambda: park_seat(cache, 2)) == ["seat"]
    one = HostRows(host.view[:, :, :1])
    assert refused_fields(lambda: swap_in(cache, 0, one)) == ["host.layers"]


def test_seats_refuse_requests_that_do_not_fit(cache: HotCache) -> None:
    assert refused_fields(lambda: cache.take_seat(2, [-1], 65)) == ["seat", "pages", "pages"]
    assert refused_fields(lambda: cache.take_seat(0, [], 513)) == ["length", "pages"]
    assert refused_fields(lambda: cache.take_seat(0, list(range(9)), 10)) == ["pages"]


def test_advancing_what_is_no_seat_changes_nothing(cache: HotCache) -> None:
    cache.advance(torch.tensor([1, -1, 2, 2**31 - 1, -7], dtype=torch.int32, device=cache.device), 3)
    assert cache.state.lengths.tolist() == [0, 3]


def test_row_formats_refuse_what_kernels_cannot_move() -> None:
    assert refused_fields(lambda: RowFormat("odd", 660, 32)) == ["row_bytes", "align_bytes"]
    assert MLA_FP8.aligned(64).stride_bytes == 704
    assert MLA_FP8.aligned(128).stride_bytes == 768
    assert MLA_FP8.stride_bytes == 656


def test_a_partition_of_no_whole_cluster_is_refused() -> None:
    assert refused_fields(lambda: partition_stream(4)) == ["sms"]
    assert refused_fields(lambda: partition_stream(12)) == ["sms"]


def test_a_partition_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceUnavailable, match="no CUDA device"):
        partition_stream(16)


def test_the_grid_follows_the_rows_expected() -> None:
    assert {gather_blocks(rows) for rows in (0, 1, 13_056)} == {8}
    assert {gather_blocks(rows) for rows in (26_240, 1_000_000)} == {16}
