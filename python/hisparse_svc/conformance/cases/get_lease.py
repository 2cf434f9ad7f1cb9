"""GetLease: one lease, as it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hisparse_svc._proto import types_pb2
from hisparse_svc.conformance.case import case
from hisparse_svc.conformance.demands import equal
from hisparse_svc.conformance.server import Code

if TYPE_CHECKING:
    from hisparse_svc.conformance.server import Server


@case("fresh")
def it_is_what_admit_gave(server: Server) -> None:
    """Every field, the extents too."""
    lease = server.lease(pages=5, request_id="looked at")
    equal(server.call("GetLease", lease_id=lease.id, tenant=server.tenant).lease, lease, "the lease")


@case("fresh")
def it_is_what_the_last_call_made_of_it(server: Server) -> None:
    """Commit and Extend show at once."""
    lease = server.lease(pages=1)
    committed = server.call("Commit", **server.named(lease)).lease
    equal(committed.state, types_pb2.LEASE_STATE_COMMITTED, "state after Commit")
    equal(server.call("GetLease", lease_id=lease.id, tenant=server.tenant).lease, committed, "the lease")
    grown = server.call("Extend", **server.named(lease), tokens=3 * server.page_tokens).lease
    equal(server.call("GetLease", lease_id=lease.id, tenant=server.tenant).lease, grown, "the lease")


@case("isolation")
def another_tenant_does_not_see_it(server: Server) -> None:
    """PERMISSION_DENIED, without a word about the lease."""
    lease = server.lease()
    server.refused("GetLease", Code.PERMISSION_DENIED, lease_id=lease.id, tenant=server.other_tenant)


@case("lifetime")
def a_released_lease_is_not_found(server: Server) -> None:
    """LEASE_NOT_FOUND with the lease's id."""
    lease = server.lease()
    server.release(lease)
    refused = server.refused("GetLease", Code.NOT_FOUND, "LEASE_NOT_FOUND", lease_id=lease.id, tenant=server.tenant)
    equal(refused.info.metadata["lease_id"], lease.id, "lease_id in the details")


@case("refusals")
def a_malformed_lease_id_is_named(server: Server) -> None:
    """Empty, too long or of other letters."""
    for lease_id in ("", "no lease of yours", "x" * 300):
        server.invalid("GetLease", "lease_id", lease_id=lease_id, tenant=server.tenant)
