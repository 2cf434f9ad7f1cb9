"""Commit: a reservation becomes use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hisparse_svc._proto import types_pb2
from hisparse_svc.conformance.case import case
from hisparse_svc.conformance.cases import named_lease
from hisparse_svc.conformance.demands import check, equal

if TYPE_CHECKING:
    from hisparse_svc.conformance.server import Server

named_lease.register(__name__, "Commit")


@case("lifetime")
def a_reservation_becomes_use(server: Server) -> None:
    """The lease is COMMITTED, keeps its pages, and lives longer."""
    lease = server.lease(pages=3)
    committed = server.call("Commit", **server.named(lease)).lease
    equal(committed.state, types_pb2.LEASE_STATE_COMMITTED, "state")
    equal((committed.id, committed.extents), (lease.id, lease.extents), "id and extents")
    later = committed.expire_time.ToNanoseconds() > lease.expire_time.ToNanoseconds()
    check(later, "a committed lease must outlive its reservation")
    found = server.call("GetLease", lease_id=lease.id, tenant=server.tenant).lease
    equal(found.state, types_pb2.LEASE_STATE_COMMITTED, "state as GetLease gives it")


@case("idempotent")
def committing_again_changes_nothing(server: Server) -> None:
    """Repeated, it gives the same lease."""
    lease = server.lease()
    for _ in range(3):
        again = server.call("Commit", **server.named(lease)).lease
        equal((again.id, again.state), (lease.id, types_pb2.LEASE_STATE_COMMITTED), "id and state")


@case("conserved", needs=["idle"])
def what_it_holds_moves_from_reserved_to_committed(server: Server) -> None:
    """Every pool counts the lease as committed, and nothing as reserved."""
    lease = server.lease(pages=4)
    reserved = server.amounts("reserved")
    server.call("Commit", **server.named(lease))
    equal(server.amounts("committed"), reserved, "committed after, and reserved before")
    check(not any(server.amounts("reserved").values()), "something is still reserved")


@case("lifetime")
def a_ttl_is_kept_to(server: Server) -> None:
    """A committed lease ends when the ttl of its commit says."""
    lease = server.lease()
    committed = server.call("Commit", **server.named(lease), ttl={"seconds": 200}).lease
    left = (committed.expire_time.ToNanoseconds() - server.capacity().observed_at.ToNanoseconds()) / 1e9
    check(199 <= left <= 200.1, f"expire_time is {left:.1f} s away, asked for 200 s")


@case("refusals")
def a_ttl_has_its_bounds(server: Server) -> None:
    """None, negative and too long times are malformed, and the lease stays reserved."""
    lease = server.lease()
    for ttl in ({}, {"seconds": -1}, {"seconds": 3_601}):
        server.invalid("Commit", "ttl", **server.named(lease), ttl=ttl)
    found = server.call("GetLease", lease_id=lease.id, tenant=server.tenant).lease
    equal(found.state, types_pb2.LEASE_STATE_RESERVED, "state after refused commits")
