"""GetCapacity: one snapshot, true when it was given."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hisparse_svc.conformance.case import case
from hisparse_svc.conformance.demands import Skipped, check, equal
from hisparse_svc.conformance.server import OVERWRITTEN, Code

if TYPE_CHECKING:
    from hisparse_svc.conformance.server import Server

POOLS = ("host_pages", "seats", "indexer_tokens", "request_slots", "window_tokens")
CLOCKS_APART_S = 300.0
"""How far the service's clock may be from ours before its times are called wrong."""
MOST_COUNTED = 64


@case("conserved")
def every_pool_is_listed_in_order(server: Server) -> None:
    """The pools are those of the interface, in its order, each with something in it."""
    pools = server.capacity().pools
    names = list(dict.fromkeys(pool.name for pool in pools))
    check(set(POOLS[:4]) <= set(names), f"pools must be {POOLS[:4]} and may be window_tokens; they are {names}")
    equal(names, [name for name in POOLS if name in names], "order of the pools")
    check(all(pool.total for pool in pools), f"a pool of nothing: {[(pool.name, pool.total) for pool in pools]}")


@case("fresh", needs=["idle"])
def looking_changes_nothing(server: Server) -> None:
    """Reads and probes leave the sequence where it is."""

    def look() -> None:
        server.capacity(1024, 8192, tenant=server.tenant)
        server.call("ListLeases", tenant=server.tenant)

    server.changes_nothing(look, "reads alone")


@case("fresh")
def the_time_of_a_snapshot_is_now(server: Server) -> None:
    """`observed_at` is the service's clock, and does not go back."""
    first, second = (server.capacity().observed_at.ToNanoseconds() for _ in range(2))
    check(second >= first, f"observed_at went back from {first} to {second} ns")
    apart = abs(second / 1e9 - time.time())
    check(apart < CLOCKS_APART_S, f"observed_at is {apart:.0f} s from this machine's clock")


@case("whole-length")
def lengths_are_answered_in_the_order_asked(server: Server) -> None:
    """One entry per length, doubles included, and a longer one never fits more often."""
    asked = [4096, 64, 131072, 64, 1]
    fits = server.capacity(*asked).fits
    equal([fit.tokens for fit in fits], asked, "lengths in fits")
    counts = {fit.tokens: fit.count for fit in fits}
    ordered = [counts[length] for length in sorted(counts)]
    equal(ordered, sorted(ordered, reverse=True), f"counts by rising length {sorted(counts)}")
    check(all(fit.binding in (*POOLS, "max_request_tokens") for fit in fits), f"binding must name a pool: {fits}")


@case("whole-length")
def a_length_that_can_never_fit_is_bound_by_the_longest(server: Server) -> None:
    """One token more than the longest request fits no times."""
    (fit,) = server.capacity(server.max_request_tokens + 1).fits
    equal((fit.count, fit.binding), (0, "max_request_tokens"), "count and binding")


@case("whole-length", needs=["idle"])
def what_fits_is_what_is_granted(server: Server) -> None:
    """As many requests of a length as `fits` says are granted, and the next one is refused by the pool it names."""
    for share in (1, 2, 4, 8):
        length = max(1, server.max_request_tokens // share)
        (fit,) = server.capacity(length).fits
        if 1 <= fit.count <= MOST_COUNTED:
            break
    else:
        raise Skipped(f"more than {MOST_COUNTED} requests of {length} tokens fit")
    for _ in range(fit.count):
        server.call("Admit", **server.asked(prompt_tokens=length, wait=OVERWRITTEN))
    refused = server.refused("Admit", Code.RESOURCE_EXHAUSTED, "POOL_BUSY", **server.asked(prompt_tokens=length))
    equal(refused.pools, [fit.binding], f"pool that refuses request {fit.count + 1} of {length} tokens")
    if fit.reason:  # a service of before this field says nothing
        equal(fit.reason, refused.reason, f"reason for which request {fit.count + 1} of {length} tokens is refused")


@case("whole-length", needs=["idle"])
def the_largest_grant_is_granted_and_one_token_more_is_not(server: Server) -> None:
    """`largest_grant_tokens` is exact, on an empty node and on one that is partly taken."""
    server.lease(pages=3)
    most = server.capacity().largest_grant_tokens
    server.call("Admit", **server.asked(prompt_tokens=most, validate_only=True))
    if most == server.max_request_tokens:
        server.refused("Admit", Code.FAILED_PRECONDITION, "NEVER_FITS", **server.asked(prompt_tokens=most + 1))
    else:
        server.refused("Admit", Code.RESOURCE_EXHAUSTED, "POOL_BUSY", **server.asked(prompt_tokens=most + 1))


@case("fresh", needs=["idle"])
def the_next_call_sees_what_a_call_changed(server: Server) -> None:
    """Granted pages are gone at once, and released ones are back at once."""
    unheld = server.unheld()["host_pages"]
    for turn in range(20):
        lease = server.lease(pages=2)
        equal(server.unheld()["host_pages"], unheld - 2, f"free pages (or being overwritten) after grant {turn}")
        server.release(lease)
        equal(server.unheld()["host_pages"], unheld, f"free pages (or being overwritten) after release {turn}")


@case("refusals")
def a_length_of_nothing_is_named(server: Server) -> None:
    """A length of zero is malformed."""
    refused = server.refused("GetCapacity", Code.INVALID_ARGUMENT, lengths=[64, 0])
    check(any(field.startswith("lengths") for field in refused.fields), f"must name lengths: {refused.fields}")


@case("refusals", needs=["limits"])
def too_many_lengths_are_refused(server: Server) -> None:
    """As many lengths as the limit are answered, one more is malformed."""
    most = server.limit("max_lengths_asked")
    equal(len(server.capacity(*[64] * most).fits), most, "entries in fits")
    refused = server.refused("GetCapacity", Code.INVALID_ARGUMENT, lengths=[64] * (most + 1))
    check(any(field.startswith("lengths") for field in refused.fields), f"must name lengths: {refused.fields}")


@case("isolation")
def a_tenants_view_says_what_it_holds(server: Server) -> None:
    """Its leases' pages, seats and slots, and none of another's."""
    server.lease(pages=3)
    server.lease(pages=2)
    server.foreign_lease(pages=1)
    used = {quota.pool: quota.used for quota in server.capacity(tenant=server.tenant).quotas}
    equal((used.get("host_pages"), used.get("seats"), used.get("request_slots")), (5, 2, 2), f"used in {used}")


@case("isolation")
def a_tenants_view_is_never_larger_than_the_nodes(server: Server) -> None:
    """What a tenant would get is at most what there is."""
    node, mine = server.capacity(4096), server.capacity(4096, tenant=server.tenant)
    check(mine.largest_grant_tokens <= mine.max_request_tokens, "largest_grant_tokens above max_request_tokens")
    equal([pool.total for pool in mine.pools], [pool.total for pool in node.pools], "totals in a tenant's view")
