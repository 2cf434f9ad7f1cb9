"""How both clients dial.

gRPC for Python sends the escaped path of a Unix socket as the authority of each call, and HTTP/2 servers in Rust refuse
it as no host; the service therefore gets `localhost` there. Who dials it from plain grpcio needs the same option.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

if TYPE_CHECKING:
    from collections.abc import Callable

    from hisparse_svc.rpc.target import Target

SESSION_METADATA = "hisparse-session"
"""Key under which a call brings the token of the session that it speaks for."""

MAX_ANSWER_BYTES = 16 << 20
"""Well above what the service sends; a longest lease with all its extents is below 1 MiB."""


def options(target: Target) -> list[tuple[str, str | int]]:
    """Give the channel's options for a target."""
    chosen: list[tuple[str, str | int]] = [
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
        # The node is near by, and no proxy stands before it; a proxy set for the web would only break this.
        ("grpc.enable_http_proxy", 0),
        # A connection of one's own: closing one client must not slow another.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if target.socket is not None:
        chosen.append(("grpc.default_authority", "localhost"))
    return chosen


class _Details(NamedTuple):
    """What grpc wants to know of a call."""

    method: str
    timeout: float | None
    metadata: list[tuple[str, str]]
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class OfSession(grpc.UnaryUnaryClientInterceptor):
    """Adds the token of a session to each call."""

    def __init__(self, token: bytes) -> None:
        self._token = token.hex()

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """Add it."""
        metadata = [*(details.metadata or ()), (SESSION_METADATA, self._token)]
        named = _Details(
            details.method,
            details.timeout,
            metadata,
            details.credentials,
            getattr(details, "wait_for_ready", None),
            getattr(details, "compression", None),
        )
        return continuation(named, request)
