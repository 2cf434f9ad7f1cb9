"""What a session must not let happen: others' pages written, lengths beyond what is there, changes within a step."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import hisparse_svc
import pytest
import torch
from hisparse_svc import InvalidInput
from hisparse_svc.engine import (
    MLA_BF16,
    AttachFailed,
    DecodeSession,
    DecodeShape,
    Geometry,
    HostCopy,
    HostPool,
    IndexInputs,
    NotRunning,
    Overlap,
    RowFormat,
)
from hisparse_svc.engine.session_checks import check_join
from hisparse_svc.rpc.values import LeaseState

from tests.decode.plain import PlainRequest, compare_host
from tests.decode.test_session import DRAFTS, SHAPE, join, make, run

if TYPE_CHECKING:
    from collections.abc import Iterator

Q = torch.zeros(1, 1, 8, 576, dtype=torch.bfloat16)
INDEX = IndexInputs(Q[:, :, :4, :128], torch.ones(1, 1, 4), Q[:, :, 0, :128])


@pytest.fixture
def pool(tiny_model: str) -> Iterator[HostPool]:
    settings = {"model": tiny_model, "kv_dtype": "bfloat16", "host_pool": "16MiB", "hot_rows": 64, "kv_bytes": "3MiB"}
    with HostPool.embedded(**settings) as pool:
        yield pool


@pytest.fixture
def session(pool: HostPool, tiny_model: str) -> DecodeSession:
    assert pool.node is not None
    shape = DecodeShape.of_plan(pool.node.plan, hisparse_svc.load_model(tiny_model))
    return DecodeSession(shape, HostCopy.of_pool(pool), "cpu", leases=pool.client)


def prefilled(session: DecodeSession, lease: Any, prompt: int, seed: int) -> PlainRequest:
    plain = PlainRequest.make(session, 300, seed)
    plain.running = session.join(lease)
    start = plain.running.length
    for layer in range(session.shape.layers):
        group, place = session.shape.place(layer)
        keys = plain.keys[group, start:prompt] if place == 0 else None
        session.prefill(plain.running, layer, plain.rows[layer, start:prompt], keys=keys)
    session.prefilled(plain.running, prompt)
    return plain


def test_a_shared_prefix_is_read_and_never_written(pool: HostPool, session: DecodeSession) -> None:
    hashes = [hashlib.sha256(bytes([page])).digest() for page in range(2)]
    asked: dict[str, Any] = {"prompt_tokens": 130, "max_new_tokens": 40, "prefix_hashes": hashes}
    first = prefilled(session, pool.client.admit(**asked), 130, 1)
    assert first.running is not None
    assert first.running.lease is not None
    pool.publish(first.running.lease, hashes)
    shared = pool.client.admit(**asked)
    assert shared.lease.shared_pages == 2
    with pytest.raises(InvalidInput, match="what it shares"):
        session.join(shared, length=64)
    second = prefilled(session, shared, 130, 1)
    assert second.running is not None
    assert second.running.first_own_token == 128
    with pytest.raises(InvalidInput, match="pages that are its own"):
        session.prefill(second.running, 1, second.rows[1, :130], keys=second.keys[1, :130], first=0)
    with pytest.raises(InvalidInput, match="must be 128 to"):
        session.prefilled(second.running, 100)
    run(session, [first, second], 20)
    compare_host(session, first)


def test_a_request_grows_into_its_extended_lease(pool: HostPool, session: DecodeSession) -> None:
    held = pool.client.admit(prompt_tokens=50, max_new_tokens=5)
    plain = prefilled(session, held, 50, 3)
    assert plain.running is not None
    run(session, [plain], 5)
    with pytest.raises(InvalidInput, match="`extend`"):
        run(session, [plain], 1)
    other = pool.client.admit(prompt_tokens=5, max_new_tokens=5)
    with pytest.raises(InvalidInput, match="the request's own"):
        session.extend(plain.running, other.lease)
    session.extend(plain.running, held.extend(140))
    run(session, [plain], 40)
    session.retract(plain.running)
    session.extend(plain.running, held.extend(200))
    session.resume(plain.running)
    run(session, [plain], 90)
    compare_host(session, plain)


def test_a_lease_runs_once(pool: HostPool, session: DecodeSession) -> None:
    held = pool.client.admit(prompt_tokens=10, max_new_tokens=60)
    request = session.join(held)
    with pytest.raises(InvalidInput, match="not run in this session already"):
        session.join(held.lease)
    with pytest.raises(InvalidInput, match="not be given beside a lease"):
        session.join(held, pages=[1])
    session.retract(request)
    with pytest.raises(InvalidInput, match="already"):
        session.join(held.lease)


def test_a_lease_that_does_not_fit_the_session_is_not_committed(pool: HostPool, tiny_model: str) -> None:
    assert pool.node is not None
    shape = DecodeShape.of_plan(pool.node.plan, hisparse_svc.load_model(tiny_model))
    short = replace(shape, geometry=replace(shape.geometry, context_tokens=128))
    session = DecodeSession(short, HostCopy.of_pool(pool), "cpu", leases=pool.client)
    with pytest.raises(InvalidInput, match="pages is 3 pages: must be at most 2"):
        session.join(pool.client.admit(prompt_tokens=130, max_new_tokens=5))
    assert [lease.state for lease in pool.client.list_leases()] == [LeaseState.RESERVED]
    held = pool.client.admit(prompt_tokens=50, max_new_tokens=5)
    request = session.join(held)
    session.retract(request)
    with pytest.raises(InvalidInput, match="pages is 3 pages: must be at most 2"):
        session.extend(request, held.extend(140))
    session.resume(request)


def test_a_request_that_fills_the_longest_context_does_not_join() -> None:
    """Its last token is told by a number that also means an empty slot, and it has no room to decode."""
    geometry = Geometry(seats=1, hot_rows=32_768, top_k=64, context_tokens=131_072)
    assert (geometry.word_bits, geometry.empty_token) == (32, 131_071)
    shape = DecodeShape(geometry, (1,), MLA_BF16, pages=2048)
    check_join(shape, 2048, None, range(2048), length=131_071, taken=set())
    with pytest.raises(InvalidInput, match="length is 131072: must be 0 to 131071"):
        check_join(shape, 2048, None, range(2048), length=131_072, taken=set())


def test_nothing_steps_on_a_pool_that_was_closed(pool: HostPool, session: DecodeSession) -> None:
    request = session.join(pool.client.admit(prompt_tokens=10, max_new_tokens=60))
    pool.close()
    with pytest.raises(AttachFailed), session.step([request]):
        pytest.fail("the step began")
    with pytest.raises(AttachFailed):
        session.join(pages=[1])
    session.leave(request)
    assert session.free_seats == session.shape.geometry.seats


def test_the_longest_context_is_a_limit_within_a_page_too() -> None:
    shape = replace(SHAPE, geometry=replace(SHAPE.geometry, context_tokens=100))
    session = make("cpu", shape=shape)
    plain = join(session, 130, 0, pages=[1, 2], prompt=90)
    run(session, [plain], 10)
    with pytest.raises(InvalidInput, match="at most 100"):
        run(session, [plain], 1)


def test_who_takes_part_changes_between_steps_alone() -> None:
    session = make("cpu")
    plain = join(session, 300, 0, prompt=100)
    with session.step([plain.running]) as step:
        step.attend(0, Q, Q[:, :, 0], scale=1.0, index=INDEX)
        for change in (
            lambda: session.leave(plain.running),
            lambda: session.retract(plain.running),
            lambda: session.join(pages=[20]),
            lambda: session.prefilled(plain.running, 10),
            lambda: session.take_back([plain.running], [0]),
            lambda: session.stepping.begin([plain.running], 1),
        ):
            with pytest.raises(InvalidInput, match="leave the `with` block"):
                change()
        step.attend(1, Q, Q[:, :, 0], scale=1.0, index=INDEX)
        step.attend(2, Q, Q[:, :, 0], scale=1.0)
    assert plain.running.length == 101


def test_drafts_are_taken_back_once() -> None:
    session = make("cpu", shape=DRAFTS)
    plain = join(session, 300, 0, prompt=100)
    for tokens in ([1], [0, 0]):
        with pytest.raises(InvalidInput):
            session.take_back([plain.running], tokens)
    run(session, [plain], 1)
    with pytest.raises(InvalidInput, match="must be 0 to 2"):
        session.take_back([plain.running], [3])
    with pytest.raises(InvalidInput, match="different requests"):
        session.take_back([plain.running, plain.running], [1, 1])
    session.take_back([plain.running], [2])
    with pytest.raises(InvalidInput, match="must be 0 to 0"):
        session.take_back([plain.running], [1])
    assert plain.running.length == 101
    session.take_back([], [])


@pytest.mark.parametrize(
    "picks",
    [
        torch.zeros(8),
        torch.zeros((1, 1, 16)),
        torch.zeros((1, 1, 16), dtype=torch.int64),
        torch.zeros((1, 1, 15), dtype=torch.int32),
        torch.zeros((2, 1, 16), dtype=torch.int32),
    ],
    ids=str,
)
def test_picks_from_elsewhere_are_of_this_batch_or_refused(picks: torch.Tensor) -> None:
    session = make("cpu")
    plain = join(session, 300, 0, prompt=100)
    with pytest.raises(InvalidInput, match="pass picks of this batch"), session.step([plain.running]) as step:
        step.attend(0, Q, Q[:, :, 0], scale=1.0, index=picks)


def test_an_index_of_another_kind_is_refused_by_name() -> None:
    session = make("cpu")
    plain = join(session, 300, 0, prompt=100)
    with (
        pytest.raises(InvalidInput, match=r"^index is int: must be IndexInputs"),
        session.step([plain.running]) as step,
    ):
        step.attend(0, Q, Q[:, :, 0], scale=1.0, index=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "field"),
    [
        (torch.zeros(1, 1, 575), "key.shape"),
        (torch.zeros(2, 1, 576), "key.shape"),
        (torch.zeros(1, 576), "key.shape"),
        (torch.zeros(1, 1, 576, dtype=torch.uint8), "key.dtype"),
        (7, "key"),
    ],
    ids=["width", "batch", "dimensions", "bytes", "no tensor"],
)
def test_a_wrong_key_is_refused_by_its_own_name(key: Any, field: str) -> None:
    session = make("cpu")
    plain = join(session, 300, 0, prompt=100)
    with pytest.raises(InvalidInput) as raised, session.step([plain.running]) as step:
        step.attend(0, Q, key, scale=1.0, index=INDEX)
    assert [problem.field for problem in raised.value.problems] == [field]


def test_a_prefill_has_a_key_for_each_row() -> None:
    session = make("cpu")
    plain = join(session, 300, 0)
    for rows, keys, match in ((3, 5, "of 3 tokens"), (5, 2, "of 5 tokens"), (0, 0, "bytes of a row")):
        with pytest.raises(InvalidInput, match=match):
            session.prefill(plain.running, 0, plain.rows[0, :rows], keys=plain.keys[0, :keys])
    with pytest.raises(InvalidInput, match="no other"):
        session.prefill(plain.running, 2, plain.rows[2, :3], keys=plain.keys[1, :3])


def test_a_body_is_tried_when_it_is_captured() -> None:
    session = make("cpu")
    with pytest.raises(InvalidInput, match="must be 1 to 3"):
        session.capture(lambda _: None, 4)
    with pytest.raises(InvalidInput, match="all of the model"):
        session.capture(lambda _: None, 2)
    with pytest.raises(InvalidInput, match="must be one of none"):
        session.capture(lambda _: None, 2, overlaps=["bogus"])  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="must be one of none"):
        DecodeSession(SHAPE, HostCopy.allocate(SHAPE), "cpu", overlap="bogus")  # type: ignore[arg-type]
    assert DecodeSession(SHAPE, HostCopy.allocate(SHAPE), "cpu", overlap="none").overlap is Overlap.NONE  # type: ignore[arg-type]


def test_a_page_that_is_exactly_full_is_durable_at_once() -> None:
    session = make("cpu")
    plain = join(session, 300, 0)
    run(session, [plain], 64)
    assert plain.running.durable_tokens == 64


def test_a_request_without_a_seat_is_told_what_to_do() -> None:
    session = make("cpu")
    plain = join(session, 300, 0, prompt=10)
    session.retract(plain.running)
    with pytest.raises(NotRunning, match="`resume`"), session.step([plain.running]):
        pytest.fail("the step began")
    session.leave(plain.running)
    with pytest.raises(NotRunning, match="`join`"):
        session.retract(plain.running)


def test_a_planned_shape_has_room_for_the_picks_beside_the_top_k() -> None:
    model = hisparse_svc.load_model("glm-5.3-flash")
    plan = hisparse_svc.plan("glm-5.3-flash", kv_dtype="fp8_e4m3", ratio=4, hot_rows=2112)
    shape = DecodeShape.of_plan(plan, model)
    assert (model.top_k, shape.geometry.picks) == (2048, model.picks_per_row)
    assert model.picks_per_row == 2048 + 3
    assert shape.device_bytes == {name: getattr(plan.device_bytes, name) for name in shape.device_bytes}
    with pytest.raises(InvalidInput, match="must be at least 2112"):
        hisparse_svc.plan("glm-5.3-flash", kv_dtype="fp8_e4m3", ratio=4, hot_rows=2048)


def test_a_plan_whose_index_keys_a_session_cannot_have_gives_no_shape() -> None:
    model = hisparse_svc.load_model("glm-5.2")
    behind = hisparse_svc.plan("glm-5.2", kv_dtype="fp8_e4m3", ratio=4, stage="39:78")
    with pytest.raises(InvalidInput, match="indexer_layers is 9: must be 10, one for each group"):
        DecodeShape.of_plan(behind, model)
    leading = hisparse_svc.plan("glm-5.2", kv_dtype="fp8_e4m3", ratio=4, stage="0:39")
    shape = DecodeShape.of_plan(leading, model)
    assert shape.device_bytes["indexer"] == leading.device_bytes.indexer
    blocks = hisparse_svc.plan("minimax-m3", kv_dtype="bfloat16", ratio=4)
    with pytest.raises(InvalidInput) as refused:
        DecodeShape.of_plan(blocks, hisparse_svc.load_model("minimax-m3"))
    assert "layout.indexer_bytes" in [problem.field for problem in refused.value.problems]


def test_pooled_index_keys_are_counted_as_the_plan_and_the_pool_do_and_refused_to_a_session() -> None:
    with HostPool.embedded(model="glm-5.3-flash", host_pool="64MiB", kv_bytes="64MiB") as pool:
        shape = DecodeShape.of_plan(pool.node.plan, hisparse_svc.load_model("glm-5.3-flash"))
        assert (shape.tokens_per_key, shape.key_page_bytes) == (4, 16 * 132)
        assert shape.device_bytes["indexer"] == pool.node.plan.device_bytes.indexer
        host = HostCopy.of_pool(pool)
        host.check(shape)
        with pytest.raises(InvalidInput, match="tokens_per_key is 4: must be 1 in a session"):
            DecodeSession(shape, host, "cpu")
    with pytest.raises(InvalidInput, match="must divide 64"):
        replace(shape, tokens_per_key=48)


def test_a_prefill_that_is_refused_writes_nothing() -> None:
    session = make("cpu")
    plain = join(session, 300, 0)
    before = [rows.view.clone() for rows in session.memory.host.rows]
    for keys in (plain.keys[0, :5].half(), plain.keys[0, :5, :64]):
        with pytest.raises(InvalidInput, match=r"keys\.(dtype|shape)"):
            session.prefill(plain.running, 0, plain.rows[0, :5], keys=keys)
    for rows, was in zip(session.memory.host.rows, before, strict=True):
        assert torch.equal(rows.view, was)


def test_weights_of_the_indexer_are_not_spread_over_queries() -> None:
    session = make("cpu")
    plain = join(session, 300, 0)
    for weights in (torch.ones(4), torch.tensor(1.0), torch.ones(1, 4)):
        with (
            pytest.raises(InvalidInput, match=r"weights\.shape is .*: must be \(1, 1, 4\)"),
            session.step([plain.running]) as step,
        ):
            step.attend(0, Q, Q[:, :, 0], scale=1, index=replace(INDEX, weights=weights))
    assert plain.running.length == 0


def test_keys_that_are_no_numbers_are_not_stored_as_such() -> None:
    session = make("cpu")
    plain = join(session, 300, 0)
    for key in (Q[:, :, 0].int(), Q[:, :, 0].bool(), Q[:, :, 0].to(torch.complex64)):
        with pytest.raises(InvalidInput, match=r"key\.dtype"), session.step([plain.running]) as step:
            step.attend(0, Q, key, scale=1, index=INDEX)
    with pytest.raises(InvalidInput, match=r"key\.requires_grad"), session.step([plain.running]) as step:
        step.attend(0, Q, Q[:, :, 0].clone().requires_grad_(), scale=1, index=INDEX)
    assert plain.running.length == 0


def test_a_session_made_under_inference_mode_steps_outside_of_it() -> None:
    with torch.inference_mode():
        session = make("cpu")
    plain = join(session, 300, 0)
    run(session, [plain], 1)
    with torch.inference_mode():
        run(session, [plain], 1)
    run(session, [plain], 1)
    assert plain.running is not None
    assert plain.running.length == 3


def test_a_pool_mapped_under_inference_mode_is_backed_up_to_outside_of_it(pool: HostPool, tiny_model: str) -> None:
    assert pool.node is not None
    with torch.inference_mode():
        shape = DecodeShape.of_plan(pool.node.plan, hisparse_svc.load_model(tiny_model))
        session = DecodeSession(shape, HostCopy.of_pool(pool), "cpu", leases=pool.client)
    plain = prefilled(session, pool.client.admit(prompt_tokens=60, max_new_tokens=20), 60, 3)
    run(session, [plain], 10)
    compare_host(session, plain)
    pool.tensor(0)[0, 0] = 1


def test_what_is_no_request_and_no_count_is_named() -> None:
    session = make("cpu")
    plain = join(session, 300, 0)
    none: Any = None
    for call in (
        lambda: session.join(pages=3),  # type: ignore[arg-type]
        lambda: session.join(pages=[True]),
        lambda: session.join(none, pages=[9], length=1.0),  # type: ignore[arg-type]
        lambda: session.leave(none),
        lambda: session.extend(plain.running, none),
        lambda: session.prefill(plain.running, "0", plain.rows[0, :5]),  # type: ignore[arg-type]
        lambda: session.prefill(plain.running, 0, plain.rows[0, :5], keys=plain.keys[0, :5], first=1.5),  # type: ignore[arg-type]
        lambda: session.prefilled(plain.running, 1.5),  # type: ignore[arg-type]
        lambda: session.take_back([plain.running], ["1"]),  # type: ignore[list-item]
        lambda: session.stepping.begin(plain.running, 1),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidInput):
            call()


def test_a_shape_of_other_parts_or_of_rows_that_attention_does_not_read_is_refused() -> None:
    for wrong in ({"layer_groups": [1, 2]}, {"pages": 1.5}, {"row_format": "bf16"}, {"index_format": 8448}):
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            replace(SHAPE, **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="pool_rows is 3"):
        replace(SHAPE, pool_rows=3)
    odd = replace(SHAPE, row_format=RowFormat("other", 640))
    with pytest.raises(InvalidInput, match=r"row_format\.row_bytes is 640"):
        DecodeSession(odd, HostCopy.allocate(odd), "cpu")


def test_index_keys_of_another_shape_than_the_rows_are_refused() -> None:
    host = HostCopy.allocate(SHAPE)
    first, second = host.keys
    for keys, field in (
        ((first,), "host.keys is 1: must be 2"),
        ((first[:3], second), "host.key_pages is 3: must be 24"),
        ((first, second.float()), r"host.key_dtype is torch.float32: must be torch.uint8"),
        ((first, second.to("meta")), "host.key_device is meta: must be cpu"),
    ):
        with pytest.raises(InvalidInput, match=field):
            DecodeSession(SHAPE, replace(host, keys=keys), "cpu")
