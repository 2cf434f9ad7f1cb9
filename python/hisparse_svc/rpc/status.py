"""A failed call as the exception that says what to do: the one place that reads gRPC status codes.

::

    code, text, grpc-status-details-bin ──► ErrorInfo.reason ──► refusals.REASONS
                                       └──► no reason: by the code alone
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from hisparse_svc._proto import types_pb2
from hisparse_svc.errors import HiSparseError, InvalidInput, Problem
from hisparse_svc.rpc import convert, refusals, unreachable

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from hisparse_svc.rpc.target import Target

DETAILS = "grpc-status-details-bin"
DOMAIN = "hisparse.v1"

BY_CODE: dict[grpc.StatusCode, type[refusals.Refused]] = {
    grpc.StatusCode.PERMISSION_DENIED: refusals.OtherTenant,
    grpc.StatusCode.NOT_FOUND: refusals.LeaseNotFound,
    grpc.StatusCode.UNIMPLEMENTED: refusals.Unsupported,
    grpc.StatusCode.INTERNAL: refusals.ServerFault,
    grpc.StatusCode.UNKNOWN: refusals.ServerFault,
    grpc.StatusCode.DATA_LOSS: refusals.ServerFault,
}


def to_error(
    failure: grpc.RpcError, target: Target, request: Message, timeout_s: float | None, *, secure: bool
) -> HiSparseError:
    """Give the exception for a failed call.

    Args:
        failure: What grpc raised.
        target: Where the call went.
        request: What was sent; a field at fault is shown with the value it had.
        timeout_s: The call's deadline.
        secure: Whether it went over TLS.
    """
    call: Any = failure  # grpc's error is its call too, and says so in no type
    code, text = call.code(), call.details() or ""
    details = _details(call)
    info = error_details_pb2.ErrorInfo()
    if _unpack(details, info) and info.domain == DOMAIN:
        kind = refusals.REASONS.get(info.reason, refusals.Refused)
        return _refused(kind, text, details, info)
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return InvalidInput(_problems(details, text, request))
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return unreachable.to_error(target, text, secure=secure)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return refusals.NoAnswer(f"no answer from {target} within {timeout_s:g} s" if timeout_s else text)
    kind = BY_CODE.get(code, refusals.Refused)
    if kind is refusals.OtherTenant and "engine" in text:  # the service has one code for both, and no reason
        kind = refusals.NotThisEngine
    return _refused(kind, text or f"the call ended with {code.name}", details, info)


def refusal(message: types_pb2.Refusal) -> HiSparseError:
    """Give the exception for one refused request of a batch."""
    if message.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]:
        return InvalidInput([Problem("request", "refused", message.message, "mend it and send it again")])
    kind = refusals.REASONS.get(message.reason)
    if kind is None:
        codes = {code.value[0]: kind for code, kind in BY_CODE.items()}
        kind = codes.get(message.code, refusals.Refused)
    retry = _seconds(message.retry_delay) if message.HasField("retry_delay") else None
    metadata = {"pool": message.binding} if message.binding else {}
    return kind(message.message, reason=message.reason, metadata=metadata, retry_after_s=retry)


def _refused(
    kind: type[refusals.Refused],
    text: str,
    details: status_pb2.Status,
    info: error_details_pb2.ErrorInfo,
) -> refusals.Refused:
    retry, capacity = error_details_pb2.RetryInfo(), types_pb2.Capacity()
    return kind(
        text,
        reason=info.reason,
        metadata=dict(info.metadata),
        retry_after_s=_seconds(retry.retry_delay) if _unpack(details, retry) else None,
        capacity=convert.capacity(capacity) if _unpack(details, capacity) else None,
    )


def _details(call: Any) -> status_pb2.Status:
    """Give the rich status; an empty one where there is none, or where it cannot be read."""
    for key, value in call.trailing_metadata() or ():
        if key == DETAILS:
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                break
    return status_pb2.Status()


def _unpack(details: status_pb2.Status, into: Message) -> bool:
    return any(detail.TypeName() == into.DESCRIPTOR.full_name and detail.Unpack(into) for detail in details.details)


def _seconds(duration: Any) -> float:
    return float(duration.seconds + duration.nanos / 1e9)


def _problems(details: status_pb2.Status, text: str, request: Message) -> list[Problem]:
    bad = error_details_pb2.BadRequest()
    if not _unpack(details, bad) or not bad.field_violations:
        return [Problem("request", "refused", text or "is malformed", "see the documentation of the call")]
    problems = []
    for violation in bad.field_violations:
        rule, _, remedy = violation.description.partition("; ")
        problems.append(Problem(violation.field, _sent(request, violation.field), rule, remedy or "mend it"))
    return problems


def _sent(request: Message, path: str) -> str:
    """Give what a field held when it was sent, briefly."""
    value = getattr(request, path, None)
    if isinstance(value, str):
        return f'"{value[:40]}"' if value else "missing"
    return str(value) if isinstance(value, (int, float)) else "not accepted"
