"""A service with one fault: a gRPC server that hands every call on to a sound one, and spoils what it is told to.

::

    suite ──► Faulty: Fault.asked ──► the sound service ──► Fault.answered, or Fault.refused ──► suite
"""

from __future__ import annotations

from concurrent import futures
from typing import TYPE_CHECKING, Any

import grpc
from google.rpc import status_pb2
from hisparse_svc.conformance import wire
from hisparse_svc.rpc.channel import options
from hisparse_svc.rpc.status import DETAILS
from hisparse_svc.rpc.target import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from google.protobuf.message import Message

NAMES = {method.path: name for name, method in wire.METHODS.items()}
STREAMS = {"WatchCapacity", "Dump", "grpc.health.v1.Health/Watch"}
LONGEST_S = 86_400.0
THREADS = 96
"""More than the calls that a case makes at once: each holds a thread."""


class Refusal(Exception):
    """A refusal to send."""

    def __init__(self, code: grpc.StatusCode, text: str, status: status_pb2.Status | None = None) -> None:
        super().__init__(text)
        self.code, self.text = code, text
        self.status = status_pb2.Status(code=code.value[0], message=text) if status is None else status


class Fault:
    """A sound service. Faults override one of these."""

    found_by: tuple[str, ...] = ()
    """Cases that must fail because of it."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}

    def asked(self, name: str, request: Any) -> Any:
        """Give what is handed on; a `Refusal` may be raised."""
        del name
        return request

    def instead(self, name: str, request: Any) -> Any:
        """Give an answer without asking the service; `None` asks it."""
        del name, request

    def answered(self, name: str, request: Any, answer: Any) -> Any:
        """Give what is answered."""
        del name, request
        return answer

    def refused(self, name: str, request: Any, refusal: Refusal) -> Refusal | Message:
        """Give the refusal that is sent, or an answer instead."""
        del name, request
        return refusal

    def told(self, name: str, answers: Iterator[Any]) -> Iterator[Any]:
        """Give the answers of a stream."""
        del name
        return answers


class Faulty(grpc.GenericRpcHandler):
    """The server; its `with` block serves."""

    def __init__(self, target: str, socket: Path, fault: Fault) -> None:
        self.fault, self.target = fault, f"unix:{socket}"
        where = resolve(target)
        self._channel = grpc.insecure_channel(where.address, options(where))
        self._server = grpc.server(
            futures.ThreadPoolExecutor(THREADS), handlers=[self], options=[("grpc.max_receive_message_length", 8 << 20)]
        )
        self._server.add_insecure_port(self.target)

    def __enter__(self) -> Faulty:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()
        self._channel.close()

    def service(self, call: Any) -> Any:
        name = NAMES.get(call.method)
        if name is None or "Reflection" in name:
            ask = self._channel.stream_stream(call.method)
            return grpc.stream_stream_rpc_method_handler(lambda asked, context: self._stream(ask, asked, context))
        if name in STREAMS:
            return grpc.unary_stream_rpc_method_handler(
                lambda asked, context: self._stream(self._channel.unary_stream(call.method), asked, context, name)
            )
        return grpc.unary_unary_rpc_method_handler(lambda asked, context: self._unary(name, asked, context))

    def _unary(self, name: str, asked: bytes, context: Any) -> bytes:
        method = wire.METHODS[name]
        try:
            request = method.request.FromString(asked)
        except Exception:  # no message: the service says so
            request = None
        try:
            if request is None:
                return bytes(self._ask(method.path, asked, context))
            given = self.fault.instead(name, request)
            if given is None:
                handed = self.fault.asked(name, request).SerializeToString()
                try:
                    given = method.answer.FromString(self._ask(method.path, handed, context))
                except Refusal as refusal:
                    given = self.fault.refused(name, request, refusal)
                    if isinstance(given, Refusal):
                        raise given from None
                else:
                    given = self.fault.answered(name, request, given)
            return bytes(given.SerializeToString())
        except Refusal as refusal:
            if refusal.status.details:
                context.set_trailing_metadata([(DETAILS, refusal.status.SerializeToString())])
            context.abort(refusal.code, refusal.text)
            raise AssertionError from None  # abort has raised

    def _ask(self, path: str, asked: bytes, context: Any) -> Any:
        coming = self._channel.unary_unary(path).future(asked, timeout=context.time_remaining())
        context.add_callback(coming.cancel)
        try:
            return coming.result()
        except grpc.FutureCancelledError:
            raise Refusal(grpc.StatusCode.CANCELLED, "cancelled") from None
        except grpc.RpcError as failure:
            refused = wire.Refused(path, failure)
            raise Refusal(refused.code, refused.text, refused.status) from None

    def _stream(self, ask: Any, asked: Any, context: Any, name: str = "") -> Iterator[bytes]:
        left_s = context.time_remaining()
        # Of a call without a deadline grpc gives more seconds than it takes.
        answers = ask(asked, timeout=left_s if left_s is not None and left_s < LONGEST_S else None)
        context.add_callback(answers.cancel)
        try:
            if not name:
                yield from answers
                return
            kind = wire.METHODS[name].answer
            for answer in self.fault.told(name, (kind.FromString(each) for each in answers)):
                yield answer.SerializeToString()
        except grpc.RpcError as failure:
            refused = wire.Refused(name, failure)
            if refused.status.details:
                context.set_trailing_metadata([(DETAILS, refused.status.SerializeToString())])
            context.abort(refused.code, refused.text)
