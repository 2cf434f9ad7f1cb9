"""Each status of the service becomes the exception that says what to do."""

from __future__ import annotations

import pickle
import threading
from concurrent import futures
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf import any_pb2
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from hisparse_svc._proto import admission_pb2, types_pb2
from hisparse_svc.client import Client
from hisparse_svc.errors import HiSparseError, InvalidInput
from hisparse_svc.rpc import calls, refusals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from google.protobuf.message import Message


class Scripted(grpc.GenericRpcHandler):
    """A server that answers every call with the next thing of a script, the last one again and again."""

    def __init__(self, *script: tuple[grpc.StatusCode, str, list[Message]] | Message) -> None:
        self.script = list(script)
        self.requests: list[bytes] = []

    def service(self, handler_call_details: Any) -> Any:
        del handler_call_details
        return grpc.unary_unary_rpc_method_handler(self.answer)

    def answer(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.requests.append(request)
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if not isinstance(step, tuple):
            return step.SerializeToString()
        code, text, details = step
        rich = status_pb2.Status(code=code.value[0], message=text)
        for detail in details:
            packed = any_pb2.Any()
            packed.Pack(detail)
            rich.details.append(packed)
        context.set_trailing_metadata((("grpc-status-details-bin", rich.SerializeToString()),))
        context.abort(code, text)
        raise AssertionError


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[Callable[..., tuple[Client, Scripted]]]:
    ends = []

    def start(*script: Any) -> tuple[Client, Scripted]:
        handler = Scripted(*script)
        server = grpc.server(futures.ThreadPoolExecutor(2))
        server.add_generic_rpc_handlers((handler,))
        server.add_insecure_port(f"unix:{tmp_path}/s")
        server.start()
        client = Client(f"unix:{tmp_path}/s", timeout_s=5)
        ends.append((client, server))
        return client, handler

    yield start
    for client, server in ends:
        client.close()
        server.stop(None).wait()


def info(reason: str, **metadata: str) -> error_details_pb2.ErrorInfo:
    return error_details_pb2.ErrorInfo(reason=reason, domain="hisparse.v1", metadata=metadata)


@pytest.mark.parametrize(("reason", "kind"), refusals.REASONS.items())
def test_every_reason_has_its_exception(scripted: Any, reason: str, kind: type[refusals.Refused]) -> None:
    client, _ = scripted((grpc.StatusCode.FAILED_PRECONDITION, "no", [info(reason)]))
    with pytest.raises(kind) as raised:
        client.admit(1)
    assert type(raised.value) is kind
    assert raised.value.reason == reason
    assert "; " in str(raised.value), "a refusal says what to do"


def test_busy_carries_the_pool_the_delay_and_the_fresh_capacity(scripted: Any) -> None:
    capacity = types_pb2.Capacity(epoch=3, pools=[types_pb2.Pool(name="seats", total=4, committed=4)])
    retry = error_details_pb2.RetryInfo(retry_delay=Duration(nanos=250_000_000))
    details = [info("POOL_BUSY", pool="seats"), retry, capacity]
    client, handler = scripted((grpc.StatusCode.RESOURCE_EXHAUSTED, "seats is busy; wait", details))
    with pytest.raises(refusals.PoolBusy) as raised:
        client.admit(1)
    busy = raised.value
    assert (busy.pool, busy.retry_after_s, busy.exit_code) == ("seats", 0.25, 4)
    assert busy.capacity is not None
    assert busy.capacity.pool("seats").committed == 4
    assert len(handler.requests) == 1, "a decision is not asked for twice"
    copy = pickle.loads(pickle.dumps(busy))  # noqa: S301 - our own bytes
    assert (str(copy), copy.pool, copy.capacity) == (str(busy), "seats", busy.capacity)


def test_bad_fields_come_back_together_with_what_was_sent(scripted: Any) -> None:
    violations = [("prompt_tokens", "must be at least 1; send the prompt's length"), ("tenant", "is too long; cut it")]
    bad = error_details_pb2.BadRequest()
    for field, text in violations:
        bad.field_violations.add(field=field, description=text)
    client, _ = scripted((grpc.StatusCode.INVALID_ARGUMENT, "two fields", [bad]))
    with pytest.raises(InvalidInput) as raised:
        client.admit(0, tenant="x" * 80)
    first, second = raised.value.problems
    assert (first.field, first.value, first.remedy) == ("prompt_tokens", "0", "send the prompt's length")
    assert second.value == f'"{"x" * 40}"'


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, refusals.OtherTenant),
        (grpc.StatusCode.UNIMPLEMENTED, refusals.Unsupported),
        (grpc.StatusCode.INTERNAL, refusals.ServerFault),
        (grpc.StatusCode.ABORTED, refusals.Refused),
        (grpc.StatusCode.UNAVAILABLE, refusals.Unreachable),
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidInput),
    ],
)
def test_a_status_without_a_reason_is_read_by_its_code(scripted: Any, code: Any, kind: type[HiSparseError]) -> None:
    client, _ = scripted((code, "", []))
    with pytest.raises(kind):
        client.admit(1)


def test_a_reason_of_another_domain_or_a_new_one_is_no_surprise(scripted: Any) -> None:
    client, _ = scripted((grpc.StatusCode.FAILED_PRECONDITION, "odd", [info("FROM_THE_FUTURE")]))
    with pytest.raises(refusals.Refused) as raised:
        client.admit(1)
    assert (type(raised.value), raised.value.reason) == (refusals.Refused, "FROM_THE_FUTURE")


def test_an_overloaded_server_is_asked_again_with_the_same_request_id(scripted: Any) -> None:
    shed = (grpc.StatusCode.UNAVAILABLE, "overloaded", [info("OVERLOADED")])
    granted = admission_pb2.AdmitResponse(lease=types_pb2.Lease(id="l-1"))
    client, handler = scripted(shed, shed, granted)
    assert client.admit(1).lease.id == "l-1"
    ids = {admission_pb2.AdmitRequest.FromString(request).request_id for request in handler.requests}
    assert len(handler.requests) == 3
    assert len(ids) == 1
    assert ids != {""}


def test_details_that_cannot_be_read_leave_the_code(scripted: Any) -> None:
    client, handler = scripted((grpc.StatusCode.INTERNAL, "broken", []))
    handler.answer = lambda _, context: (
        context.set_trailing_metadata((("grpc-status-details-bin", b"\xff\xff\xff"),)),
        context.abort(grpc.StatusCode.INTERNAL, "broken"),
    )
    with pytest.raises(refusals.ServerFault):
        client.admit(1)


def test_a_silent_server_is_no_answer_within_the_deadline(scripted: Any) -> None:
    client, handler = scripted(admission_pb2.AdmitResponse())
    woken = threading.Event()
    handler.answer = lambda *_: woken.wait(5) and b""
    client.timeout_s = 0.2
    try:
        with pytest.raises(refusals.NoAnswer) as raised:
            client.admit(1)
    finally:
        woken.set()
    assert isinstance(raised.value, TimeoutError)
    assert isinstance(raised.value, refusals.Unreachable)
    assert raised.value.exit_code == 3


def test_a_batch_reads_each_decision() -> None:
    refusal = types_pb2.Refusal(code=8, reason="POOL_BUSY", message="busy; wait", binding="seats")
    refusal.retry_delay.seconds = 2
    answer = admission_pb2.BatchAdmitResponse(
        results=[
            admission_pb2.BatchAdmitResult(lease=types_pb2.Lease(id="l-1")),
            admission_pb2.BatchAdmitResult(refusal=refusal),
            admission_pb2.BatchAdmitResult(refusal=types_pb2.Refusal(code=3, message="zero tokens")),
        ]
    )
    granted, busy, malformed = calls.batch_admit([]).read(answer)
    assert granted.lease is not None
    assert isinstance(busy.refusal, refusals.PoolBusy)
    assert (busy.refusal.pool, busy.refusal.retry_after_s) == ("seats", 2.0)
    assert isinstance(malformed.refusal, InvalidInput)
