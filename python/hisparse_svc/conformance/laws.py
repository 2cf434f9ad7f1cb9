"""What every answer must keep, whatever its case is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
from google.rpc import error_details_pb2

from hisparse_svc._proto import types_pb2
from hisparse_svc.conformance.demands import check, equal
from hisparse_svc.rpc.status import DOMAIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

    from hisparse_svc.conformance.wire import Refused

Code = grpc.StatusCode

DETAILS_BYTES = 4_096
"""Most that the details of a refusal may have: gRPC libraries give up at twice this."""

REASONS = {
    "NEVER_FITS": Code.FAILED_PRECONDITION,
    "STALE_EPOCH": Code.FAILED_PRECONDITION,
    "POOL_BUSY": Code.RESOURCE_EXHAUSTED,
    "QUOTA": Code.RESOURCE_EXHAUSTED,
    "DRAINING": Code.UNAVAILABLE,
    "RECOVERING": Code.UNAVAILABLE,
    "OVERLOADED": Code.UNAVAILABLE,
    "LEASE_NOT_FOUND": Code.NOT_FOUND,
    "REQUEST_ID_REUSED": Code.ALREADY_EXISTS,
    "DEADLINE": Code.DEADLINE_EXCEEDED,
    "WRONG_ROLE": Code.PERMISSION_DENIED,
    "WRONG_TENANT": Code.PERMISSION_DENIED,
}
"""Each reason's code."""

PARTS = ("free", "reserved", "committed", "evictable", "scrubbing", "quarantined")


def kept_by_answer(answer: Message) -> None:
    """Demand the conservation law of every pool in an answer.

    Raises:
        Broken: A pool has more or less than all of it.
    """
    for pool in inside(answer, types_pb2.Pool.DESCRIPTOR.full_name):
        parts = {part: getattr(pool, part) for part in PARTS}
        equal(sum(parts.values()), pool.total, f"total of {pool.name}, whose parts are {parts}")


def kept_by_refusal(refused: Refused) -> None:
    """Demand the form of a refusal.

    Raises:
        Broken: A detail is missing, or says what it must not.
    """
    where = f"{refused.method} {refused.code.name} {refused.reason}".rstrip()
    check(refused.text or refused.code is Code.UNIMPLEMENTED, f"{where}: a refusal needs a message")
    check(refused.readable, f"{where}: grpc-status-details-bin is no google.rpc.Status")
    check(refused.details_bytes < DETAILS_BYTES, f"{where}: {refused.details_bytes} bytes of details, at most 4 KiB")
    kinds = [detail.TypeName() for detail in refused.status.details]
    equal(sorted(set(kinds)), sorted(kinds), f"{where}: each kind of detail at most once")
    if kinds:
        equal(refused.status.code, refused.code.value[0], f"{where}: code of google.rpc.Status")
    if refused.has(error_details_pb2.ErrorInfo):
        equal(refused.info.domain, DOMAIN, f"{where}: domain of ErrorInfo")
        check(refused.reason in REASONS, f"{where}: no reason of the interface")
        equal(refused.code, REASONS[refused.reason], f"code of {refused.reason}")
    if refused.code is Code.INVALID_ARGUMENT:
        violations = refused.detail(error_details_pb2.BadRequest).field_violations
        check(violations, f"{where}: BadRequest must name the fields at fault")
        check(all(each.field and each.description for each in violations), f"{where}: a violation without words")
    elif refused.code in (Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE) and refused.reason:
        check((refused.retry_s or 0.0) > 0, f"{where}: RetryInfo must say when to try again")
    if refused.code is Code.RESOURCE_EXHAUSTED and refused.reason:
        check(refused.pools and all(refused.pools), f"{where}: QuotaFailure must name the pool")
    if refused.capacity is not None:
        kept_by_answer(refused.capacity)


def inside(message: Any, name: str) -> Iterator[Any]:
    """Every message of a type, however deep."""
    if message.DESCRIPTOR.full_name == name:
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in value if field.is_repeated else [value]:
            yield from inside(each, name)
