"""Calls as plain gRPC makes them: no retries, no reading of errors but their own parts.

::

    method name ─► its request and answer from the descriptors ─► one call ─► answer, or Refused with the rich status
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf import message_factory
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from hisparse_svc._proto import admin_pb2, admission_pb2, budget_pb2, capacity_pb2, engine_pb2, types_pb2
from hisparse_svc.conformance import standard
from hisparse_svc.rpc.status import DETAILS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from google.protobuf.message import Message

TIMEOUT_S = 10.0
"""Deadline of a call, unless its case is about deadlines."""


@dataclass(frozen=True)
class Method:
    """How a method is called."""

    path: str
    request: type[Message]
    answer: type[Message]


def _methods() -> dict[str, Method]:
    files = [module.DESCRIPTOR for module in (capacity_pb2, admission_pb2, budget_pb2, engine_pb2, admin_pb2)]
    found = {}
    for file in [*files, *standard.FILES]:
        for service in file.services_by_name.values():
            for method in service.methods:
                kinds = [message_factory.GetMessageClass(kind) for kind in (method.input_type, method.output_type)]
                name = method.name if file.package == "hisparse.v1" else f"{service.full_name}/{method.name}"
                found[name] = Method(f"/{service.full_name}/{method.name}", *kinds)
    return found


METHODS = _methods()
"""Every method: ours by their names, the standard ones as `grpc.health.v1.Health/Check`."""


class Refused(Exception):
    """A call that ended with a status other than OK."""

    def __init__(self, method: str, failure: Any) -> None:
        self.method = method
        self.code: grpc.StatusCode = failure.code()
        self.text: str = failure.details() or ""
        found = [value for key, value in failure.trailing_metadata() or () if key == DETAILS]
        self.details_bytes = sum(len(value) for value in found)
        self.status = status_pb2.Status()
        self.readable = True
        try:
            for value in found:
                self.status.MergeFromString(value)
        except DecodeError:
            self.readable = False
        super().__init__(f"{method} ended with {self.code.name} {self.reason or '(no reason)'}: {self.text}")

    def detail(self, kind: type[Any]) -> Any:
        """Give the detail of a type; an empty one where there is none."""
        made = kind()
        for detail in self.status.details:
            if detail.TypeName() == made.DESCRIPTOR.full_name:
                detail.Unpack(made)
        return made

    def has(self, kind: type[Any]) -> bool:
        """Say whether there is a detail of a type."""
        return any(detail.TypeName() == kind.DESCRIPTOR.full_name for detail in self.status.details)

    @property
    def info(self) -> error_details_pb2.ErrorInfo:
        """The `ErrorInfo`."""
        found: error_details_pb2.ErrorInfo = self.detail(error_details_pb2.ErrorInfo)
        return found

    @property
    def reason(self) -> str:
        """The word that programs go by."""
        return self.info.reason

    @property
    def retry_s(self) -> float | None:
        """When to try again, in seconds."""
        if not self.has(error_details_pb2.RetryInfo):
            return None
        delay = self.detail(error_details_pb2.RetryInfo).retry_delay
        return float(delay.seconds + delay.nanos / 1e9)

    @property
    def fields(self) -> list[str]:
        """Paths of the fields at fault."""
        return [violation.field for violation in self.detail(error_details_pb2.BadRequest).field_violations]

    @property
    def pools(self) -> list[str]:
        """Pools that a `QuotaFailure` names."""
        failure = self.detail(error_details_pb2.QuotaFailure)
        return [violation.subject.rpartition(":")[2] for violation in failure.violations]

    @property
    def capacity(self) -> types_pb2.Capacity | None:
        """The node as of the refusal."""
        found: types_pb2.Capacity | None = self.detail(types_pb2.Capacity) if self.has(types_pb2.Capacity) else None
        return found


class Wire:
    """One connection."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel

    def call(self, name: str, request: Any = None, *, timeout_s: float = TIMEOUT_S, **fields: Any) -> Any:
        """Make one call; `request` may be bytes that are no message.

        Raises:
            Refused: It did not end with OK.
        """
        return self.begin(name, request, timeout_s=timeout_s, **fields).result()

    def begin(
        self,
        name: str,
        request: Any = None,
        *,
        timeout_s: float = TIMEOUT_S,
        headers: Sequence[tuple[str, str]] = (),
        **fields: Any,
    ) -> Coming:
        """Send a call without waiting for its answer."""
        method = METHODS[name]
        sent = request if isinstance(request, bytes) else (request or method.request(**fields)).SerializeToString()
        stub = self.channel.unary_unary(method.path, _same, method.answer.FromString)
        return Coming(name, stub.future(sent, timeout=timeout_s, metadata=tuple(headers)))

    def stream(self, name: str, *, timeout_s: float = TIMEOUT_S, **fields: Any) -> Stream:
        """Make a call with many answers."""
        method = METHODS[name]
        stub = self.channel.unary_stream(method.path, method.request.SerializeToString, method.answer.FromString)
        return Stream(name, stub(method.request(**fields), timeout=timeout_s))

    def talk(self, name: str, **fields: Any) -> Any:
        """Send one message on a stream of both directions; give the first answer."""
        method = METHODS[name]
        stub = self.channel.stream_stream(method.path, method.request.SerializeToString, method.answer.FromString)
        with Stream(name, stub(iter([method.request(**fields)]), timeout=TIMEOUT_S)) as answers:
            return next(answers)


def _same(message: bytes) -> bytes:
    return message


class Coming:
    """A call under way."""

    def __init__(self, name: str, future: Any) -> None:
        self._name, self._future = name, future

    def result(self) -> Any:
        """Wait for the answer.

        Raises:
            Refused: The call did not end with OK.
        """
        try:
            return self._future.result()
        except grpc.RpcError as failure:
            raise Refused(self._name, failure) from None

    def header(self, name: str) -> str:
        """Give a header of the answer; empty where there is none."""
        return next((value for key, value in self._future.initial_metadata() or () if key == name), "")

    def done(self) -> bool:
        """Say whether it has ended."""
        return bool(self._future.done())

    def cancel(self) -> None:
        """Stop waiting."""
        self._future.cancel()


class Stream:
    """Answers as they come; leaving its `with` block ends the call."""

    def __init__(self, name: str, answers: Any) -> None:
        self._name, self._answers = name, answers

    def __iter__(self) -> Iterator[Any]:
        """Give the answers."""
        return self

    def __next__(self) -> Any:
        """Wait for the next one.

        Raises:
            Refused: The call ended otherwise than with OK.
        """
        try:
            return next(self._answers)
        except grpc.RpcError as failure:
            raise Refused(self._name, failure) from None

    def __enter__(self) -> Stream:
        """Give the stream itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the call."""
        self._answers.cancel()
