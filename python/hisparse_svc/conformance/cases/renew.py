"""Renew: the end of a lease is put off."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hisparse_svc._proto import types_pb2
from hisparse_svc.conformance.case import case
from hisparse_svc.conformance.cases import named_lease
from hisparse_svc.conformance.demands import check, equal

if TYPE_CHECKING:
    from hisparse_svc.conformance.server import Server

named_lease.register(__name__, "Renew")


@case("lifetime")
def the_end_is_put_off(server: Server) -> None:
    """From now, by the ttl given."""
    lease = server.lease(ttl={"seconds": 5})
    renewed = server.call("Renew", **server.named(lease), ttl={"seconds": 300}).lease
    left = (renewed.expire_time.ToNanoseconds() - server.capacity().observed_at.ToNanoseconds()) / 1e9
    check(299 <= left <= 300.1, f"expire_time is {left:.1f} s away, asked for 300 s")
    equal((renewed.id, renewed.state), (lease.id, types_pb2.LEASE_STATE_RESERVED), "id and state")


@case("lifetime")
def without_a_ttl_it_lives_as_long_as_before(server: Server) -> None:
    """The ttl that it was given before counts again from now."""
    answer = server.admit(ttl={"seconds": 120})
    time.sleep(0.05)
    renewed = server.call("Renew", **server.named(answer.lease)).lease
    moved = (renewed.expire_time.ToNanoseconds() - answer.lease.expire_time.ToNanoseconds()) / 1e9
    check(0.04 <= moved < 5, f"expire_time moved by {moved:.3f} s after a rest of 0.05 s")


@case("lifetime")
def a_renewed_lease_outlives_its_first_end(server: Server) -> None:
    """It is alive after the time that it was granted for."""
    lease = server.lease(ttl={"nanos": 400_000_000})
    server.call("Renew", **server.named(lease), ttl={"seconds": 60})
    time.sleep(0.6)
    found = server.call("GetLease", lease_id=lease.id, tenant=server.tenant).lease
    equal(found.state, types_pb2.LEASE_STATE_RESERVED, "state after its first ttl")


@case("lifetime")
def a_committed_lease_is_renewed_too(server: Server) -> None:
    """Without an engine, a committed lease lives by Renew."""
    lease = server.lease()
    server.call("Commit", **server.named(lease), ttl={"nanos": 400_000_000})
    renewed = server.call("Renew", **server.named(lease), ttl={"seconds": 60}).lease
    equal(renewed.state, types_pb2.LEASE_STATE_COMMITTED, "state")
    time.sleep(0.6)
    found = server.call("GetLease", lease_id=lease.id, tenant=server.tenant).lease
    equal(found.state, types_pb2.LEASE_STATE_COMMITTED, "state after its first ttl")


@case("lifetime")
def a_committed_lease_ends_in_silence(server: Server) -> None:
    """Without an engine and without Renew it ends by its ttl, into quarantine."""
    lease = server.lease()
    server.call("Commit", **server.named(lease), ttl={"nanos": 50_000_000})
    time.sleep(0.2)
    found = server.call("GetLease", lease_id=lease.id, tenant=server.tenant).lease
    equal(found.state, types_pb2.LEASE_STATE_QUARANTINED, "state after its ttl")


@case("refusals")
def a_ttl_has_its_bounds(server: Server) -> None:
    """None, negative and too long times are malformed, and the end stays where it was."""
    lease = server.lease()
    for ttl in ({}, {"seconds": -1}, {"seconds": 3_601}):
        server.invalid("Renew", "ttl", **server.named(lease), ttl=ttl)
    found = server.call("GetLease", lease_id=lease.id, tenant=server.tenant).lease
    equal(found.expire_time, lease.expire_time, "expire_time after refused renewals")
