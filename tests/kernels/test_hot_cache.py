"""Bytes, seats, streams, parking: the hot cache beyond one resolver."""

from __future__ import annotations

import pytest
import torch
from hisparse_svc.engine import MLA_FP8, Geometry, HostRows, HotCache, park_seat, swap_in, unpark_seat
from hisparse_svc.kernels import PAGE_ROWS, append, backup, backup_pages
from hisparse_svc.kernels.words import tokens_of


def _filled_host(pages: int, layers: int, device: str) -> HostRows:
    host = HostRows.allocate(pages, layers, 656, pinned=device != "cpu")
    host.view[:] = torch.randint(0, 256, host.view.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(7))
    return host


def _step(cache: HotCache, group: int, host: HostRows, seat: int, tokens: list[int], **options: int) -> torch.Tensor:
    plan = cache.plan.first(1)
    plan.seats[0] = seat
    plan.picks.fill_(-1)
    plan.picks[0, 0, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
    done = swap_in(cache, group, host, 1, **options)
    done.wait()
    rows = done.rows[0, 0, : len(tokens)].long()
    return cache.rows[group][:, rows].transpose(0, 1).cpu()


def _expected(host: HostRows, pages: list[int], tokens: list[int]) -> torch.Tensor:
    return torch.stack([host.view[pages[token // PAGE_ROWS], token % PAGE_ROWS] for token in tokens])


@pytest.mark.parametrize(("query_rows", "context", "align"), [(1, 65_536, 16), (4, 2**20, 128)])
def test_bytes_are_what_the_formulas_say(query_rows: int, context: int, align: int, device: str) -> None:
    geometry = Geometry(seats=3, hot_rows=8192, top_k=2048, query_rows=query_rows, context_tokens=context)
    cache = HotCache(geometry, [2, 1], MLA_FP8.aligned(align), device)
    word, stride = (4, 656) if context == 65_536 else (8, 768)
    picks = 2048 * query_rows
    assert cache.device_bytes == {
        "hot": 3 * (2 + 1) * (8192 + 64) * stride,
        "tables": 3 * (2 * 8192 * word + 16),
        "maps": 3 * context // 64 * 4,
        "side": 3 * (16 * picks + 8),
    }


def test_groups_keep_their_own_words(device: str) -> None:
    cache = HotCache(Geometry(seats=2, hot_rows=64, top_k=16, context_tokens=512), [2, 1], MLA_FP8, device)
    hosts = [_filled_host(8, 2, device), _filled_host(8, 1, device)]
    cache.take_seat(1, [3, 0, 5], 180)
    for group, tokens in ((0, [5, 70, 179]), (1, [6, 7])):
        assert torch.equal(_step(cache, group, hosts[group], 1, tokens), _expected(hosts[group], [3, 0, 5], tokens))
    held = [set(tokens_of(cache.geometry, cache.words[group, 1]).tolist()) for group in (0, 1)]
    assert held == [{5, 70, 179, cache.geometry.empty_token}, {6, 7, cache.geometry.empty_token}]


@pytest.mark.parametrize("first_layers", [0, 1, 3])
def test_layers_may_come_in_two_parts(first_layers: int, device: str) -> None:
    cache = HotCache(Geometry(seats=1, hot_rows=64, top_k=16, context_tokens=512), [4], MLA_FP8, device)
    host = _filled_host(8, 4, device)
    cache.take_seat(0, [7, 1, 2], 150)
    tokens = [149, 0, 64, 63, 100]
    found = _step(cache, 0, host, 0, tokens, first_layers=first_layers)
    assert torch.equal(found, _expected(host, [7, 1, 2], tokens))


def test_a_token_without_a_host_page_becomes_zeros(device: str) -> None:
    cache = HotCache(Geometry(seats=1, hot_rows=64, top_k=16, context_tokens=512), [1], MLA_FP8, device)
    host = _filled_host(4, 1, device)
    cache.rows[0].fill_(255)
    cache.take_seat(0, [2, 9], 100)
    cache.state.lengths[0] = 200
    cache.state.newest_from[0] = 200
    found = _step(cache, 0, host, 0, [3, 70, 150])
    assert torch.equal(found[0], host.view[2, 3])
    assert not found[1:].any()


def test_bulk_rows_reach_their_pages(device: str) -> None:
    geometry = Geometry(seats=1, hot_rows=64, top_k=16, context_tokens=512)
    host = _filled_host(8, 3, device)
    before = host.view.clone()
    rows = torch.randint(0, 256, (2, 150, 656), dtype=torch.uint8).to(device)
    pages = torch.tensor([6, 0, -1, 4], dtype=torch.int32, device=device)
    backup_pages(geometry, host, rows, pages, first_token=30, first_layer=1)
    if device != "cpu":
        torch.cuda.synchronize()
    for index in range(150):
        token = 30 + index
        page = [6, 0, -1, 4][token // 64]
        if page >= 0:
            before[page, token % 64, 1:] = rows[:, index].cpu()
    assert torch.equal(host.view, before)


def test_a_parked_request_comes_back_with_the_same_rows_hot(device: str) -> None:
    geometry = Geometry(seats=3, hot_rows=64, top_k=16, context_tokens=1024)
    chance = torch.Generator().manual_seed(3)

    def decode(parked_after: int) -> tuple[torch.Tensor, list[list[int]]]:
        chance.manual_seed(3)
        cache, host = HotCache(geometry, [2], MLA_FP8, device), _filled_host(16, 2, device)
        pages, seat, misses = list(range(15, 3, -1)), 0, []
        cache.take_seat(0, pages, 500)
        for step in range(60):
            if step == parked_after:
                parked = park_seat(cache, 0)
                cache.take_seat(0, [1], 40)  # somebody else, meanwhile
                _step(cache, 0, host, 0, list(range(16)))
                seat = 2
                unpark_seat(cache, seat, parked, [host])
            plan = cache.plan.first(1)
            plan.seats[0] = seat
            cache.advance(plan.seats, 1)
            new = torch.randint(0, 256, (1, 1, 656), dtype=torch.uint8, generator=chance).to(device)
            for layer in range(2):
                append(geometry, cache.rows[0][layer], cache.state, plan, new)
            backup(geometry, host, cache.rows[0], cache.state, plan)
            length = 501 + step
            tokens = (torch.randperm(120, generator=chance)[:15] + length - 120).tolist()
            found = _step(cache, 0, host, seat, [length - 1, *tokens])
            if device != "cpu":
                torch.cuda.synchronize()
            assert torch.equal(found, _expected(host, pages, [length - 1, *tokens]))
            misses.append(sorted(plan.misses[0, : int(plan.counts[0]), 0].tolist()))
        return cache.words[0, seat].cpu(), misses

    words, misses = decode(parked_after=-1)
    for parked_after in (0, 1, 30, 59):
        again, missed = decode(parked_after)
        assert missed == misses
        assert torch.equal(again, words)
