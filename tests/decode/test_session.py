"""A decode session: budgets to the byte, retract and resume, drafts, captured steps, and what it refuses."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import hisparse_svc
import pytest
import torch
from hisparse_svc import InvalidInput
from hisparse_svc.engine import (
    MLA_BF16,
    DecodeSession,
    DecodeShape,
    Geometry,
    HostCopy,
    HostPool,
    IndexInputs,
    NotRunning,
    Overlap,
    attend_hits_first,
    layer_step,
)

from tests.decode.plain import PlainRequest, PlainStep, compare_host

if TYPE_CHECKING:
    from hisparse_svc.engine import Running

SHAPE = DecodeShape(Geometry(seats=3, hot_rows=64, top_k=16, context_tokens=512), (1, 2), MLA_BF16, 24)
DRAFTS = replace(SHAPE, geometry=replace(SHAPE.geometry, query_rows=3))


def make(device: str, overlap: Overlap = Overlap.PREFETCH, shape: DecodeShape = SHAPE) -> DecodeSession:
    return DecodeSession(shape, HostCopy.allocate(shape, pinned=device != "cpu"), device, overlap=overlap)


def join(session: DecodeSession, tokens: int, seed: int, *, prompt: int = 0, pages: list[int] | None = None) -> Any:
    plain = PlainRequest.make(session, tokens, seed)
    plain.running = session.join(pages=pages or list(range(seed * 8, seed * 8 + 8)))
    for layer in range(session.shape.layers if prompt else 0):
        group, place = session.shape.place(layer)
        device = session.memory.cache.device
        keys = plain.keys[group, :prompt].to(device) if place == 0 else None
        session.prefill(plain.running, layer, plain.rows[layer, :prompt].to(device), keys=keys)
    if prompt:
        session.prefilled(plain.running, prompt)
    return plain


def run(session: DecodeSession, requests: list[Any], steps: int) -> list[torch.Tensor]:
    outputs = []
    for _ in range(steps):
        body = PlainStep(session, requests, len(requests), exact_attention=True)
        with session.step([plain.running for plain in requests]) as step:
            body(step)
        outputs += body.outputs
    return outputs


@pytest.mark.parametrize("overlap", list(Overlap))
def test_retract_and_resume_change_no_output(device: str, overlap: Overlap) -> None:
    outputs = []
    for interrupted in (False, True):
        session = make(device, overlap)
        one, two = join(session, 400, 0, prompt=200), join(session, 400, 1, prompt=100)
        found = run(session, [one, two], 20)
        if interrupted:
            session.retract(one.running)
            run(session, [two], 10)
            session.retract(two.running)
            session.resume(one.running)
            other = join(session, 100, 2, prompt=90)
            found += run(session, [one], 70)
            run(session, [other], 5)
            session.resume(two.running)
        else:
            run(session, [two], 10)
            found += run(session, [one], 70)
        found += run(session, [one, two], 10)
        outputs.append(found)
    assert len(outputs[0]) == len(outputs[1])
    assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))


def test_refused_drafts_are_taken_back(device: str) -> None:
    session = make(device, shape=DRAFTS)
    plain = join(session, 300, 0, prompt=150)
    keep = [3, 1, 2, 1, 1, 3, 2, 1] * 4
    for count in keep:
        before = plain.running.length
        run(session, [plain], 1)
        session.take_back([plain.running], [3 - count])
        assert plain.running.length == before + count
    session.retract(plain.running)
    compare_host(session, plain)


def test_a_captured_step_is_the_eager_one(device: str) -> None:
    outputs = []
    for captured in (False, True):
        session = make(device)
        requests = [join(session, 300, seed, prompt=150 - 40 * seed) for seed in range(2)]
        q = torch.randn(3, 1, 8, 576, generator=torch.Generator().manual_seed(5)).bfloat16().to(device)
        rows, out = q[:, :, 0].clone(), torch.zeros(3, 3, 1, 8, 512, dtype=torch.bfloat16, device=device)
        index = IndexInputs(q[:, :, :4, :128].clone(), q[:, :, :4, 0].float().clone(), rows[..., :128].clone())

        def body(step: Any, out: Any = out, q: Any = q, rows: Any = rows, index: Any = index) -> None:
            for layer in range(3):
                first = SHAPE.place(layer)[1] == 0
                step.attend(layer, q, rows, scale=0.1, index=index if first else None, out=out[layer])

        graph = session.capture(body, batch=3) if captured else None
        running = [plain.running for plain in requests]
        for number in range(80):
            rows += 1 / 64
            some = running if number % 3 else running[:1]
            if graph is not None:
                graph.replay(some)
            else:
                with session.step(some, batch=3) as step:
                    body(step)
            outputs.append((captured, out.clone().cpu()))
        assert [request.length for request in running] == [150 + 80, 110 + 53]
    eager = [found for captured, found in outputs if not captured]
    replayed = [found for captured, found in outputs if captured]
    assert all(torch.equal(a, b) for a, b in zip(eager, replayed, strict=True))


def test_another_session_goes_on_where_rows_are_durable(device: str) -> None:
    first = make(device)
    plain = join(first, 400, 1, prompt=130)
    run(first, [plain], 100)
    first.settle(wait=True)
    durable = plain.running.durable_tokens
    assert durable == 192  # 230 tokens: three full pages
    second = DecodeSession(SHAPE, first.memory.host, device)
    plain.running = second.join(pages=plain.running.pages, length=durable)
    run(second, [plain], 60)
    compare_host(second, plain)


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "fp8_e4m3"])
def test_the_plan_is_the_allocation(tiny_model: str, device: str, kv_dtype: str) -> None:
    settings = {"model": tiny_model, "kv_dtype": kv_dtype, "host_pool": "16MiB", "hot_rows": 128, "kv_bytes": "3MiB"}
    with HostPool.embedded(**settings) as pool:
        assert pool.node is not None
        plan = pool.node.plan
        shape = DecodeShape.of_plan(plan, hisparse_svc.load_model(tiny_model))
        host = HostCopy.of_pool(pool)
        gc.collect()  # what earlier tests left must not go meanwhile
        before = torch.cuda.memory_allocated(device) if device != "cpu" else 0
        session = DecodeSession(shape, host, device)
        planned = plan.device_bytes
        assert session.memory.device_bytes == {
            name: getattr(planned, name) for name in ("hot", "indexer", "tables", "maps", "side", "draft", "resident")
        }
        assert session.memory.device_bytes == shape.device_bytes
        if device != "cpu":
            tensors = sum(session.memory.device_bytes.values()) + session.memory.workspace_bytes
            assert (
                tensors <= torch.cuda.memory_allocated(device) - before <= tensors + 512 * 64
            )  # blocks are of 512 bytes
        rows = sum(rows.pages * rows.page_pitch for rows in host.rows)
        keys = sum(keys.shape[0] * keys.stride(0) for keys in host.keys)
        assert rows + keys == plan.host_bytes
        assert session.free_seats == plan.seats


def refuses(session: DecodeSession, requests: list[Running], match: str, **options: int) -> None:
    before = [request.length for request in requests]
    with pytest.raises(InvalidInput, match=match), session.step(requests, **options):
        pytest.fail("the step began")
    assert [request.length for request in requests] == before


def test_what_cannot_be_stepped_is_refused(device: str) -> None:
    session = make(device)
    plain = join(session, 65, 0, pages=[3, 4], prompt=64)
    request = plain.running
    refuses(session, [request, request], "each request once")
    refuses(session, [request], "must be 1 to 3", batch=4)
    refuses(session, [], "must be 1 to 3")
    long = join(session, 10, 1, pages=[5], prompt=0)
    long.running.length = 64
    refuses(session, [long.running], "pass it to `extend`")
    with pytest.raises(InvalidInput, match="different pages"):
        session.join(pages=[24])
    session.join(pages=[6])
    with pytest.raises(InvalidInput, match="seats of this session"):
        session.join(pages=[7])
    session.leave(request)
    with pytest.raises(NotRunning):
        session.leave(request)
    with pytest.raises(NotRunning), session.step([request]):
        pass
    with pytest.raises(NotRunning):
        session.resume(request)


def test_layers_come_in_order_and_a_failed_step_takes_nobody_further(device: str) -> None:
    session = make(device)
    plain = join(session, 300, 0, prompt=200)
    run(session, [plain], 5)
    q = torch.zeros(1, 1, 8, 576, dtype=torch.bfloat16, device=device)
    index = IndexInputs(q[:, :, :4, :128], torch.ones(1, 1, 4, device=device), q[:, :, 0, :128])

    def attend(*layers: int, indexed: bool = True) -> None:
        with session.step([plain.running]) as step:
            for layer in layers:
                step.attend(layer, q, q[:, :, 0], scale=1.0, index=index if indexed else None)

    with pytest.raises(InvalidInput, match="in order"):
        attend(1)
    with pytest.raises(InvalidInput, match="in order"):
        attend(0, 0)
    with pytest.raises(InvalidInput, match="all of the model"):
        attend(0)
    with pytest.raises(InvalidInput, match="all of the model"):
        attend()
    with pytest.raises(InvalidInput, match="first layer of a group"):
        attend(0, indexed=False)
    assert plain.running.length == 205
    run(session, [plain], 70)
    compare_host(session, plain)


@pytest.mark.parametrize("top_k", [1, 64])
@pytest.mark.parametrize("context", [1, 2, 63, 64, 65])
def test_requests_decode_to_the_end_of_contexts_around_a_page(context: int, top_k: int) -> None:
    geometry = Geometry(seats=2, hot_rows=64, top_k=top_k, context_tokens=context)
    session = make("cpu", Overlap.HITS_FIRST, replace(SHAPE, geometry=geometry, pages=4))
    pages, start = [[1, 2], [3, 0]], max(0, context - 4)
    plains = [join(session, context, at, prompt=start, pages=pages[at][: geometry.map_pages]) for at in range(2)]
    run(session, plains, context - start)
    with pytest.raises(InvalidInput, match=f"length is {context}: and 1 more must be at most {context}"):
        run(session, plains[:1], 1)


@pytest.mark.parametrize("overlap", list(Overlap))
def test_first_layers_of_groups_attend_hits_first_where_that_was_asked(
    monkeypatch: pytest.MonkeyPatch, overlap: Overlap
) -> None:
    groups: list[int] = []

    def recorded(cache: Any, group: int, *arguments: Any, **others: Any) -> Any:
        groups.append(group)
        return attend_hits_first(cache, group, *arguments, **others)

    monkeypatch.setattr(layer_step, "attend_hits_first", recorded)
    session = make("cpu", overlap)
    run(session, [join(session, 300, 0)], 2)
    assert groups == ([0, 1] * 2 if overlap is Overlap.HITS_FIRST else [])


def test_a_captured_step_on_the_cpu_overlaps_as_its_capture_was_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[int] = []

    def recorded(cache: Any, group: int, *arguments: Any, **others: Any) -> Any:
        groups.append(group)
        return attend_hits_first(cache, group, *arguments, **others)

    monkeypatch.setattr(layer_step, "attend_hits_first", recorded)
    session = make("cpu", Overlap.PREFETCH)
    q = torch.zeros(1, 1, 8, 576, dtype=torch.bfloat16)
    picks = torch.zeros(1, 1, SHAPE.geometry.top_k, dtype=torch.int32)

    def body(step: Any) -> None:
        for layer in range(SHAPE.layers):
            step.attend(layer, q, q[:, :, 0], scale=0.1, index=picks if SHAPE.place(layer)[1] == 0 else None)

    graph = session.capture(body, 1, overlaps=[Overlap.HITS_FIRST, Overlap.NONE])
    assert groups == [0, 1], "the run that finds what is wrong with the body"
    graph.replay([join(session, 300, 0).running])
    assert groups == [0, 1] * 2
