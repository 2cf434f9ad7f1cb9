"""What Publish, Reclaim and ReportUsage have in common: they are an attached engine's, and nobody else's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hisparse_svc.conformance.case import case
from hisparse_svc.conformance.server import Code

if TYPE_CHECKING:
    from hisparse_svc.conformance.server import Server


def fields(server: Server, method: str) -> dict[str, Any]:
    """A well-formed call."""
    if method == "Reclaim":
        return {"engine_id": "engine", "token": bytes(16)}
    lease = server.lease()
    if method == "Publish":
        return {"lease_id": lease.id, "epoch": lease.epoch, "hashes": [bytes(32)]}
    return {"usage": [{"lease_id": lease.id, "tokens": 1}]}


def register(module: str, method: str) -> None:
    """Register the shared cases for one method, under its own name."""

    def who_is_not_attached_is_refused(server: Server) -> None:
        """A caller that is not the attached engine may not speak for it."""
        server.refused(method, Code.PERMISSION_DENIED, **fields(server, method))

    def it_is_unimplemented_where_no_engine_can_attach(server: Server) -> None:
        """Without an attach socket the service is not there, and says so in gRPC's own way."""
        server.refused(method, Code.UNIMPLEMENTED, **fields(server, method))

    for need, show in (
        ("engine", who_is_not_attached_is_refused),
        ("no engine", it_is_unimplemented_where_no_engine_can_attach),
    ):
        show.__module__ = module
        case("isolation", needs=[need])(show)
