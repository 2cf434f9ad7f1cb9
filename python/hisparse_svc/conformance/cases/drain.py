"""Drain: nothing new is granted, what is held stays held. These cases disturb every caller of the node."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from hisparse_svc.conformance.case import case
from hisparse_svc.conformance.demands import Skipped, check, equal
from hisparse_svc.conformance.server import Code
from hisparse_svc.conformance.standard import HEALTH_CHECK, STATUS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hisparse_svc.conformance.server import Server

NEEDS = ("destructive", "admin")


@contextlib.contextmanager
def draining(server: Server) -> Iterator[None]:
    """The node drains, and grants again afterwards."""
    if server.capacity().draining:
        raise Skipped("the node is draining already")
    try:
        server.call("Drain")
        yield
    finally:
        server.wire.call("Drain", resume=True)


@case("refusals", needs=NEEDS)
def nothing_new_is_granted(server: Server) -> None:
    """Admit and BatchAdmit are UNAVAILABLE, DRAINING, with a time to try again; validate_only says so too."""
    with draining(server):
        server.refused("Admit", Code.UNAVAILABLE, "DRAINING", **server.asked())
        server.refused("Admit", Code.UNAVAILABLE, "DRAINING", **server.asked(validate_only=True))
        server.refused("BatchAdmit", Code.UNAVAILABLE, "DRAINING", requests=[server.asked()])
        check(server.capacity().draining, "GetCapacity must say that the node is draining")
        equal(server.capacity().largest_grant_tokens, 0, "largest_grant_tokens of a draining node")


@case("deadline", needs=NEEDS)
def what_is_held_stays_held(server: Server) -> None:
    """Commit, Renew, GetLease, a repeated Admit and Release go on."""
    lease = server.lease(request_id="before")
    with draining(server):
        server.call("Commit", **server.named(lease))
        server.call("Renew", **server.named(lease))
        server.call("GetLease", lease_id=lease.id, tenant=server.tenant)
        equal(server.admit(request_id="before").lease.id, lease.id, "lease of a repeated request")
        check(not server.release(lease).already_released, "already_released of a live lease")


@case("idempotent", needs=NEEDS)
def draining_twice_is_draining(server: Server) -> None:
    """Repeated it changes nothing, and one resume ends it."""
    with draining(server):
        answer = server.call("Drain")
        check(answer.capacity.draining, "the answer's capacity must be draining")
        check(not server.call("Drain", resume=True).capacity.draining, "draining after a resume")
        server.lease()


@case("deadline", needs=[*NEEDS, "idle"])
def it_can_wait_until_nothing_is_held(server: Server) -> None:
    """With `wait` it answers when the last lease is gone, or after so long with what still is."""
    lease = server.lease()
    with draining(server):
        begun = time.monotonic()
        held = server.call("Drain", wait={"nanos": 300_000_000})
        equal((held.leases, held.empty), (1, False), "leases and empty while something is held")
        check(time.monotonic() - begun >= 0.28, "it did not wait for its time")
        coming = server.begin("Drain", wait={"seconds": 8})
        time.sleep(0.1)
        check(not coming.done(), "it answered while something was held")
        server.release(lease)
        check(coming.result().empty, "empty must be set when nothing is held any more")


@case("standard", needs=NEEDS)
def readiness_follows_it(server: Server) -> None:
    """Health says NOT_SERVING for what grants, SERVING for what lives."""

    def status(name: str) -> str:
        return STATUS[server.call(HEALTH_CHECK, service=name).status]

    with draining(server):
        for name in ("", "readiness", "hisparse.v1.AdmissionService"):
            equal(status(name), "NOT_SERVING", f"health of {name!r} while draining")
        equal(status("liveness"), "SERVING", "health of liveness while draining")
    equal(status("readiness"), "SERVING", "health of readiness after a resume")
