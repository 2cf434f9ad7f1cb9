"""Whether a node grants, as `grpc.health.v1` says it.

Messages of that protocol hold one field each and read as a wrapper does: no package of theirs is needed.
"""

from __future__ import annotations

from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from hisparse_svc.rpc.calls import Call

SERVING = 1
"""Of `grpc.health.v1.HealthCheckResponse.ServingStatus`."""


def ready() -> Call[Int32Value, bool]:
    """Ask whether the node grants."""
    request = StringValue(value="readiness")
    return Call("/grpc.health.v1.Health/Check", request, Int32Value, lambda answer: answer.value == SERVING)
