"""GetOverview: the node at a glance, which names nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from hisparse_svc.conformance.case import case
from hisparse_svc.conformance.demands import Skipped, check, equal
from hisparse_svc.conformance.wire import Refused

if TYPE_CHECKING:
    from hisparse_svc.conformance.server import Server

STATES = ("free", "reserved", "committed", "evictable", "scrubbing", "quarantined")


def looked(server: Server, *lengths: int) -> Any:
    """One look; a service of before this method, and a caller without any role, see none."""
    try:
        return server.call("GetOverview", lengths=lengths)
    except Refused as refused:
        if refused.code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED):
            raise Skipped(f"the service answers {refused.code.name}") from None
        raise


@case("conserved", needs=["idle"])
def it_shows_the_pools_and_what_fits_as_get_capacity_does(server: Server) -> None:
    """Pools, largest grant and fits of one moment are the same in both answers."""
    server.lease(pages=3)
    seen, capacity = looked(server, 64, 4096), server.capacity(64, 4096)
    equal(list(seen.capacity.pools), list(capacity.pools), "pools")
    equal(list(seen.fits), list(capacity.fits), "fits")
    equal(seen.capacity.largest_grant_tokens, capacity.largest_grant_tokens, "largest grant")


@case("conserved", needs=["idle"])
def its_map_adds_up_to_the_host_pages(server: Server) -> None:
    """The buckets of each state sum up to that state of the pool; there is one number per bucket in every list."""
    server.call("Commit", **server.named(server.lease(pages=3)))
    server.lease(pages=2)
    seen = looked(server)
    pool = next(pool for pool in seen.capacity.pools if pool.name == "host_pages")
    for state in STATES:
        equal(sum(getattr(seen.map, state)), getattr(pool, state), f"{state} pages of the map")
    lengths = {len(getattr(seen.map, state)) for state in (*STATES, "lease")}
    check(len(lengths) == 1, f"lists of the map have {sorted(lengths)} entries")
    check(max(seen.map.lease, default=0) <= len(seen.leases), "the map names a lease that is not listed")


@case("fresh")
def it_lists_leases_without_the_names_of_anybody(server: Server) -> None:
    """Id, length, pages and age of a lease that was just granted; its request and tenant are nowhere in the answer."""
    lease = server.lease(pages=2)
    seen = looked(server)
    found = [glance for glance in seen.leases if glance.id == lease.id]
    if not found and seen.leases_total > len(seen.leases):
        raise Skipped("there are more leases than it lists")
    equal(
        [(each.tokens, each.pages, each.extent_count) for each in found], [(lease.tokens, 2, len(lease.extents))], "it"
    )
    check(lease.request_id.encode() not in seen.SerializeToString(), "the answer names the request")


@case("refusals")
def a_length_of_nothing_is_named(server: Server) -> None:
    """A length of zero is malformed."""
    looked(server)
    refused = server.refused("GetOverview", grpc.StatusCode.INVALID_ARGUMENT, lengths=[0])
    check(any(field.startswith("lengths") for field in refused.fields), f"must name lengths: {refused.fields}")
