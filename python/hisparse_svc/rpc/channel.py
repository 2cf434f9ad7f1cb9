"""How both clients dial.

gRPC for Python sends the escaped path of a Unix socket as the authority of each call, and HTTP/2 servers in Rust refuse
it as no host; the service therefore gets `localhost` there. Who dials it from plain grpcio needs the same option.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from hisparse_svc.rpc.calls import Call
    from hisparse_svc.rpc.target import Target
    from hisparse_svc.rpc.tls import Tls

SESSION_METADATA = "hisparse-session"
"""Key under which a call brings the token of the session that it speaks for."""

CONNECT_MS = 500
"""How long a connection may take to be made, TLS included, before it counts as none; gRPC's name for it says something
else. A node that is busy or behind slow lines takes some of it; one that hangs costs every call as much."""

MAX_ANSWER_BYTES = 16 << 20
"""Well above what the service sends; a longest lease with all its extents is below 1 MiB."""


def dial(kind: Any, target: Target, certificates: Tls | None) -> Any:
    """Open a channel to a target; `kind` is `grpc` or `grpc.aio`."""
    if certificates is None:
        return kind.insecure_channel(target.address, options(target))
    chosen = options(target)
    if certificates.server_name:
        chosen.append(("grpc.ssl_target_name_override", certificates.server_name))
    return kind.secure_channel(target.address, certificates.credentials(), chosen)


def callable_of(kind: Callable[..., Any], call: Call[Any, Any]) -> Any:
    """Give what makes a call; `kind` is a channel's `unary_unary` or `unary_stream`."""
    return kind(
        call.path,
        request_serializer=type(call.request).SerializeToString,
        response_deserializer=call.answer.FromString,
    )


def options(target: Target) -> list[tuple[str, str | int]]:
    """Give the channel's options for a target."""
    chosen: list[tuple[str, str | int]] = [
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", CONNECT_MS),
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


def of_session(token: bytes | None) -> tuple[tuple[str, str], ...]:
    """Give what each call carries beside its message where it speaks for a session."""
    return () if token is None else ((SESSION_METADATA, token.hex()),)
