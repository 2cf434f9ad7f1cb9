"""CUDA kernels against the reference, bit by bit, and what only a GPU has: graphs, streams, compilers' output."""

from __future__ import annotations

import random
from dataclasses import fields

import pytest
import torch
from hisparse_svc.engine import MLA_FP8, HostPool, HostRows, HotCache, SwapIn, back_up, partition_stream, swap_in
from hisparse_svc.kernels import (
    GATHER_BLOCKS,
    DeviceUnavailable,
    Geometry,
    SeatState,
    SplitPicks,
    StepPlan,
    append,
    cuda,
    reference,
)
from hisparse_svc.kernels.cuda.launch import resolve_kernel
from hisparse_svc.kernels.cuda.shapes import Resolver, resolvers
from hisparse_svc.kernels.words import empty_words

pytestmark = pytest.mark.gpu

GEOMETRIES = [
    Geometry(seats=5, hot_rows=4096, top_k=2048),
    Geometry(seats=5, hot_rows=8192, top_k=2048, query_rows=4),
    Geometry(seats=5, hot_rows=6144, top_k=2048, query_rows=3),
    Geometry(seats=5, hot_rows=4096, top_k=2048, context_tokens=163_840),
    Geometry(seats=5, hot_rows=8192, top_k=2048, query_rows=4, context_tokens=2**20),
    Geometry(seats=5, hot_rows=10_240, top_k=2048, query_rows=2),
    Geometry(seats=5, hot_rows=32_768, top_k=2048),
    Geometry(seats=5, hot_rows=1088, top_k=96, query_rows=2, context_tokens=5000),
    Geometry(seats=5, hot_rows=64, top_k=16, context_tokens=4096),
    Geometry(seats=5, hot_rows=192, top_k=31, query_rows=5, context_tokens=4096),
]


def _resolver(geometry: Geometry, which: int) -> Resolver:
    available = [one for one in resolvers(geometry) if one.shared_bytes <= 232_448]
    if which >= len(available):
        pytest.skip("this geometry has one resolver")
    return available[which]


def _stream(geometry: Geometry, chance: random.Random, length: int, steps: int) -> list[torch.Tensor]:
    """Picks of one request over time: mostly the same, sometimes new, repeated over query rows, odd ones mixed in."""
    top_k, rows = geometry.top_k, geometry.query_rows
    current = chance.sample(range(length), min(top_k, length))
    found = []
    for step in range(steps):
        replaced = chance.choice([0, 0, len(current) // 10, len(current) // 3, len(current)])
        kept = chance.sample(current, len(current) - replaced)
        held = set(kept)
        fresh = [token for token in chance.sample(range(length), min(length, top_k)) if token not in held]
        current = kept + fresh[:replaced]
        table = torch.full((rows, top_k), -1, dtype=torch.int32)
        for row in range(rows):
            mine = chance.sample(current, len(current))
            for index in range(len(mine) // 20):
                mine[index] = chance.randrange(length)
            mine = list(dict.fromkeys(mine))
            if step % 7 == 3:
                mine = mine[: chance.randrange(len(mine) + 1)]
            if step % 7 == 5 and len(mine) > 4:
                mine[1], mine[2], mine[3] = -1, length, 2**31 - 1
            table[row, : len(mine)] = torch.tensor(mine, dtype=torch.int32)
        found.append(table)
    return found


@pytest.mark.parametrize("which", [0, 1], ids=["first", "second"])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: f"hot{g.hot_rows}-picks{g.picks}-ctx{g.context_tokens}")
def test_a_resolver_is_the_reference_bit_by_bit(geometry: Geometry, which: int) -> None:
    resolver = _resolver(geometry, which)
    chance = random.Random(f"{geometry} {which}")  # noqa: S311 - test data
    batch, steps = 4, 12
    words = {"cpu": empty_words(geometry, "cpu").repeat(geometry.seats, 1)}
    words["cuda"] = words["cpu"].cuda()
    seats = [3, 0, -1, 2]
    lengths = [geometry.context_tokens, geometry.hot_rows + 70, geometry.top_k // 2 + 1, geometry.context_tokens - 3, 9]
    lengths = [min(length, geometry.context_tokens) for length in lengths]
    streams = {seat: _stream(geometry, chance, lengths[seat], steps) for seat in seats if seat >= 0}
    state, plan = {}, {}
    for device in ("cpu", "cuda"):
        state[device] = SeatState.allocate(geometry, device)
        state[device].lengths[:] = torch.tensor(lengths)
        state[device].newest_from[:] = torch.tensor([max(0, length - 20) for length in lengths])
        plan[device] = StepPlan.allocate(geometry, device, batch)
        plan[device].seats[:] = torch.tensor(seats)
    for step in range(steps):
        picks = torch.full((batch, geometry.query_rows, geometry.top_k), 5, dtype=torch.int32)
        for request, seat in enumerate(seats):
            if seat >= 0:
                picks[request] = streams[seat][step]
        for device in ("cpu", "cuda"):
            plan[device].picks[:] = picks
            for output in (plan[device].rows, plan[device].misses, plan[device].counts):
                output.fill_(-777)
        reference.resolve(geometry, words["cpu"], state["cpu"], plan["cpu"], order=resolver.order)
        cuda.resolve(geometry, words["cuda"], state["cuda"], plan["cuda"], resolver=resolver)
        for name in ("counts", "misses", "rows"):
            same = torch.equal(getattr(plan["cuda"], name).cpu(), getattr(plan["cpu"], name))
            assert same, f"{name} differ in step {step} of {resolver.source}"
        assert torch.equal(words["cuda"].cpu(), words["cpu"]), f"words differ in step {step} of {resolver.source}"


def test_a_batch_of_requests_is_the_same_in_a_graph_and_beside_a_stream() -> None:
    geometry = Geometry(seats=130, hot_rows=256, top_k=64, context_tokens=2048)
    host = HostRows.allocate(130 * 32, 3, 656, pinned=True)
    host.view[:] = torch.randint(0, 256, host.view.shape, dtype=torch.uint8)
    cache = HotCache(geometry, [3], MLA_FP8, "cuda")
    pages = torch.randperm(130 * 32).view(130, 32)
    for seat in range(130):
        cache.take_seat(seat, pages[seat].tolist(), 2048)
    cache.plan.seats[:] = torch.randperm(130, dtype=torch.int32)
    side = torch.cuda.Stream()
    swap_in(cache, 0, host, side_stream=side, first_layers=1).wait()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        done = swap_in(cache, 0, host, side_stream=side, first_layers=1)
        done.wait()
    for step in range(4):
        tokens = torch.stack([torch.randperm(2048)[:64] for _ in range(130)]).int()
        cache.plan.picks[:, 0] = tokens.cuda()
        cache.plan.seats[step] = -1
        graph.replay()
        torch.cuda.synchronize()
        seats, rows = cache.plan.seats.cpu(), done.rows[:, 0].cpu()
        found = cache.rows[0][:, rows.clamp_min(0).cuda().long()].cpu()
        where = pages[seats.clamp_min(0).long()[:, None], tokens // 64]
        expected = host.view[where, tokens.long() % 64].permute(2, 0, 1, 3)
        used = seats >= 0
        assert (rows[~used] == -1).all()
        assert torch.equal(found[:, used], expected[:, used])


def test_a_captured_step_appends_backs_up_and_swaps_in_at_once() -> None:
    seats, layers = 40, 2
    geometry = Geometry(seats=seats, hot_rows=256, top_k=64, query_rows=2, context_tokens=2048)
    host = HostRows.allocate(seats * 32, layers, 656, pinned=True)
    host.view[:] = torch.randint(0, 256, host.view.shape, dtype=torch.uint8)
    expected = host.view.clone()
    cache = HotCache(geometry, [layers], MLA_FP8, "cuda")
    pages = torch.randperm(seats * 32).view(seats, 32)
    for seat in range(seats):
        cache.take_seat(seat, pages[seat].tolist(), 1000)
    cache.plan.seats[:] = torch.arange(seats)
    cache.plan.seats[7] = -1
    new = torch.zeros((layers, seats, 2, 656), dtype=torch.uint8, device="cuda")
    gathers, backups = torch.cuda.Stream(), torch.cuda.Stream()

    def step() -> SwapIn:
        cache.advance(cache.plan.seats, 2)
        for layer in range(layers):
            append(geometry, cache.rows[0][layer], cache.state, cache.plan, new[layer])
        saved = back_up(cache, 0, host, side_stream=backups)
        done = swap_in(cache, 0, host, side_stream=gathers)
        done.wait()
        saved.wait()
        return done

    step()
    torch.cuda.synchronize()
    lengths, graph = 1002, torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        done = step()
    seat = torch.arange(seats)[:, None]
    for query in (0, 1):
        expected[pages[:, 15], (1000 + query) % 64] = 0
    for _ in range(80):
        new.copy_(torch.randint(0, 256, new.shape, dtype=torch.uint8))
        for query in (0, 1):
            token = lengths + query
            expected[pages[:, token // 64], token % 64] = new[:, :, query].cpu().transpose(0, 1)
        lengths += 2
        tokens = torch.stack([torch.randperm(150)[:128] for _ in range(seats)]) + lengths - 150
        cache.plan.picks.copy_(tokens.view(seats, 2, 64))
        graph.replay()
        torch.cuda.synchronize()
        rows = done.rows.cpu().view(seats, 128).long()
        found = cache.rows[0][:, rows.clamp_min(0).cuda()].cpu()
        wanted = expected[pages[seat, tokens // 64], tokens % 64].permute(2, 0, 1, 3)
        used = torch.arange(seats) != 7
        assert (rows[7] == -1).all()
        assert torch.equal(found[:, used], wanted[:, used])
    untouched = torch.isin(torch.arange(seats * 32), pages[7])
    assert torch.equal(host.view[~untouched], expected[~untouched])


@pytest.mark.parametrize("blocks", GATHER_BLOCKS)
@pytest.mark.parametrize(("layers", "row_bytes"), [(1, 656), (3, 656), (2, 1152), (1, 2304)])
def test_a_gather_copies_every_row_once_in_whatever_order(blocks: int, layers: int, row_bytes: int) -> None:
    """Some requests miss all, some nothing, some tokens have no page; as listed, in one round, and in several.

    It looks the rows up itself, and is given them looked up.
    """
    seats, top_k, context, pages = 12, 1024, 1280, 20
    geometry = Geometry(seats=seats, hot_rows=1024, top_k=top_k, context_tokens=context)
    host = HostRows.allocate(seats * 22, layers, row_bytes, pinned=True)
    host.view[:] = torch.randint(0, 256, host.view.shape, dtype=torch.uint8)
    state, plan = SeatState.allocate(geometry, "cuda"), StepPlan.allocate(geometry, "cuda")
    state.page_map[:] = torch.randperm(seats * 22, dtype=torch.int32)[: seats * pages].view(seats, pages)
    state.page_map[:, 5], state.page_map[3, 9] = -1, seats * 22
    hot = torch.empty((layers, seats * geometry.padded_rows, row_bytes), dtype=torch.uint8, device="cuda")
    expected = torch.empty_like(hot, device="cpu")
    split = SplitPicks.allocate(geometry, seats, "cuda")
    for largest, order_from in ((3, 2048), (300, 4096), (40, 1), (1024, 2048)):
        counts = torch.randint(0, largest + 1, (seats,), dtype=torch.int32)
        counts[:4] = torch.tensor([largest, 0, 0, largest])
        slots = torch.stack([torch.randperm(1024)[:top_k] for _ in range(seats)])
        tokens = torch.stack([torch.randperm(context)[:top_k] for _ in range(seats)])
        plan.misses[..., 0] = tokens.int()
        plan.misses[..., 1] = (slots + torch.arange(seats)[:, None] * geometry.padded_rows).int()
        plan.counts[:] = counts
        seat_pages = state.page_map.cpu()[torch.arange(seats)[:, None], tokens // 64]
        host_rows = torch.where(seat_pages < 0, -1, seat_pages * 64 + tokens % 64)
        split.copies[..., 0], split.copies[..., 1] = host_rows.int(), plan.misses[..., 1]
        expected.fill_(7)
        cpu_state = SeatState(*(getattr(state, field.name).cpu() for field in fields(state)))
        cpu_plan = StepPlan(*(getattr(plan, field.name).cpu() for field in fields(plan)))
        reference.gather(geometry, host, expected, cpu_state, cpu_plan)
        for between in (None, split):
            hot.fill_(7)
            cuda.gather(geometry, host, hot, state, plan, blocks=blocks, order_from=order_from, between=between)
            torch.cuda.synchronize()
            assert torch.equal(hot.cpu(), expected), (largest, order_from, between is None)


def test_the_largest_batch_is_gathered_in_order() -> None:
    """1,024 requests: more than a block has threads."""
    seats = 1024
    geometry = Geometry(seats=seats, hot_rows=64, top_k=16, context_tokens=256)
    host = HostRows.allocate(seats * 4, 1, 656, pinned=True)
    host.view[:] = torch.randint(0, 256, host.view.shape, dtype=torch.uint8)
    cache = HotCache(geometry, [1], MLA_FP8, "cuda")
    pages = torch.randperm(seats * 4, dtype=torch.int32).view(seats, 4)
    cache.state.page_map[:] = pages
    cache.state.lengths[:], cache.state.newest_from[:] = 256, 256
    cache.plan.seats[:] = torch.randperm(seats, dtype=torch.int32)
    cache.plan.seats[[0, 511, 512, 1023]] = -1
    tokens = torch.stack([torch.randperm(200)[:16] for _ in range(seats)])
    cache.plan.picks[:, 0] = tokens.cuda()
    done = swap_in(cache, 0, host)
    done.wait()
    seat = cache.plan.seats.cpu().long()
    used = seat >= 0
    found = cache.rows[0][0][done.rows[:, 0].cpu()[used].long().cuda()].cpu()
    expected = host.view[pages[seat[used][:, None], tokens[used] // 64].long(), tokens[used] % 64, 0]
    assert int(done.counts.sum()) == 16 * (seats - 4)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_prefill_on_a_gpu_fills_a_lease(layers: int) -> None:
    with HostPool.embedded(host_pool="256MiB") as pool, pool.client.admit(150) as held:
        pool.register()
        group = next(group for group in pool.groups() if len(group) > layers)
        rows = torch.randint(0, 256, (layers, 100, 656), dtype=torch.uint8, device="cuda")
        with pool.import_pages(held.lease) as pages:
            pages.write(group[1] if layers == 1 else group[0], rows, first_token=30)
        numbers = [
            page for run in held.lease.extents for page in range(run.first_page, run.first_page + run.page_count)
        ]
        for index in range(layers):
            stored = torch.from_numpy(pool.array(group[1] if layers == 1 else group[index])[numbers].reshape(-1, 656))
            assert torch.equal(stored[30:130], rows[index].cpu())
            assert not stored[:30].any()
            assert not stored[130:].any()


def test_an_event_made_for_it_survives_capture() -> None:
    """A stream outside of the graph waits for the rows of each replay, while the graph goes on."""
    geometry = Geometry(seats=4, hot_rows=256, top_k=64, context_tokens=2048)
    host = HostRows.allocate(4 * 32, 1, 656, pinned=True)
    cache = HotCache(geometry, [1], MLA_FP8, "cuda")
    for seat in range(4):
        cache.take_seat(seat, range(seat * 32, seat * 32 + 32), 2048)
    cache.plan.seats[:] = torch.arange(4)
    side, outside = torch.cuda.Stream(), torch.cuda.Stream()
    swap_in(cache, 0, host, side_stream=side).wait()
    fetched, graph = torch.cuda.Event(external=True), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        done = swap_in(cache, 0, host, side_stream=side, signal=fetched)
        done.wait()
        torch.cuda._sleep(400_000_000)
    after = torch.cuda.Event()
    cache.rows[0][0, done.rows.flatten().long()].clone()  # loads its kernels, which would wait for the device
    for step in range(1, 4):
        host.view[:] = step
        cache.plan.picks[:, 0] = torch.arange(64 * step, 64 * step + 64)
        torch.cuda.synchronize()
        graph.replay()
        after.record()
        with torch.cuda.stream(outside):
            outside.wait_event(fetched)
            copied = cache.rows[0][0, done.rows.flatten().long()].clone()
        outside.synchronize()
        still_at_work = not after.query()
        torch.cuda.synchronize()
        assert bool((copied == step).all()), step
        assert still_at_work, "the rows of this replay can be had before its graph is done"
    torch.cuda.synchronize()


def test_a_gather_runs_on_a_partition_of_eight_sms() -> None:
    geometry = Geometry(seats=130, hot_rows=256, top_k=64, context_tokens=2048)
    host = HostRows.allocate(130 * 32, 2, 656, pinned=True)
    host.view[:] = torch.randint(0, 256, host.view.shape, dtype=torch.uint8)
    cache = HotCache(geometry, [2], MLA_FP8, "cuda")
    for seat in range(130):
        cache.take_seat(seat, range(seat * 32, seat * 32 + 32), 2048)
    cache.plan.seats[:] = torch.arange(130)
    try:
        side = partition_stream(8)
    except DeviceUnavailable as refused:
        pytest.skip(str(refused))
    assert partition_stream(8) is side
    for graph in (None, torch.cuda.CUDAGraph()):
        tokens = torch.stack([torch.randperm(2048)[:64] for _ in range(130)])
        cache.plan.picks[:, 0] = tokens.cuda()
        if graph is None:
            done = swap_in(cache, 0, host, side_stream=side, expected_misses=20_000)
            done.wait()
        else:
            with torch.cuda.graph(graph):
                done = swap_in(cache, 0, host, side_stream=side)
                done.wait()
            graph.replay()
        torch.cuda.synchronize()
        found = cache.rows[0][:, done.rows[:, 0].long()].cpu()
        where = torch.arange(130)[:, None] * 32 + tokens // 64
        assert torch.equal(found, host.view[where, tokens % 64].permute(2, 0, 1, 3))


def test_the_common_resolver_spills_nothing() -> None:
    for which in (0, 1):
        kernel = resolve_kernel(0, _resolver(GEOMETRIES[0], which))
        assert kernel.local_bytes == 0
        assert kernel.registers <= 64


def test_a_gather_of_nothing_is_legal() -> None:
    geometry = Geometry(seats=2, hot_rows=64, top_k=16, context_tokens=512)
    cache = HotCache(geometry, [1], MLA_FP8, "cuda")
    host = HostRows.allocate(2, 1, 656, pinned=True)
    cache.rows[0].fill_(9)
    done = swap_in(cache, 0, host)
    done.wait()
    torch.cuda.synchronize()
    assert (done.rows == -1).all()
    assert (cache.rows[0] == 9).all()
