"""grpc.health.v1.Health: whether it lives, and whether it grants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hisparse_svc.conformance.case import case
from hisparse_svc.conformance.demands import Skipped, check, equal
from hisparse_svc.conformance.standard import HEALTH_CHECK, HEALTH_WATCH, STATUS
from hisparse_svc.conformance.wire import Refused

if TYPE_CHECKING:
    from hisparse_svc.conformance.server import Server

SERVICES = ("CapacityService", "AdmissionService", "BudgetService", "AdminService")


def status(server: Server, name: str) -> str:
    """Health of a name."""
    return STATUS[server.call(HEALTH_CHECK, service=name).status]


@case("standard")
def a_node_that_grants_is_serving(server: Server) -> None:
    """The server as a whole, its readiness and its liveness."""
    if server.capacity().draining:
        raise Skipped("the node is draining")
    for name in ("", "readiness", "liveness"):
        equal(status(server, name), "SERVING", f"health of {name!r}")


@case("standard")
def every_service_has_a_health(server: Server) -> None:
    """By its full name."""
    for name in SERVICES:
        check(status(server, f"hisparse.v1.{name}") in ("SERVING", "NOT_SERVING"), f"no health of {name}")


@case("standard")
def a_name_of_nobody_is_not_found(server: Server) -> None:
    """NOT_FOUND, as gRPC defines it, without a reason of ours."""
    try:
        server.call(HEALTH_CHECK, service="nobody.v1.NoService")
    except Refused as refused:
        equal(refused.code.name, "NOT_FOUND", "code")
    else:
        check(False, "a service that does not exist has a health")


@case("standard")
def a_health_watch_tells_at_once(server: Server) -> None:
    """The first message comes without a change; an unknown name is SERVICE_UNKNOWN and stays open, or NOT_FOUND."""
    with server.wire.stream(HEALTH_WATCH, service="liveness") as told:
        equal(STATUS[next(told).status], "SERVING", "first message of a watch")


@case("fresh", needs=["idle"])
def probes_change_nothing(server: Server) -> None:
    """A hundred checks leave the ledger as it was."""

    def look() -> None:
        for _ in range(100):
            status(server, "readiness")

    server.changes_nothing(look, "probes")
