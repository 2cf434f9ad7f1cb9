"""Extend: a lease grows in place to a greater length."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hisparse_svc.conformance.case import case
from hisparse_svc.conformance.cases import named_lease
from hisparse_svc.conformance.demands import Skipped, check, equal
from hisparse_svc.conformance.server import Code

if TYPE_CHECKING:
    from hisparse_svc._proto import types_pb2
    from hisparse_svc.conformance.server import Server

named_lease.register(__name__, "Extend")


def pages_of(lease: types_pb2.Lease) -> list[int]:
    """Pages in token order."""
    return [extent.first_page + step for extent in lease.extents for step in range(extent.page_count)]


@case("whole-length")
def a_lease_grows_in_place(server: Server) -> None:
    """It has the new length, the pages it had, and new ones after them."""
    lease = server.lease(pages=2)
    for pages in (3, 6):
        grown = server.call("Extend", **server.named(lease), tokens=pages * server.page_tokens).lease
        equal((grown.id, grown.tokens, grown.pages), (lease.id, pages * server.page_tokens, pages), "id, tokens, pages")
        equal(pages_of(grown)[: lease.pages], pages_of(lease), "pages it had before")
        equal(len(set(pages_of(grown))), pages, "different pages")
        lease = grown


@case("idempotent")
def growing_again_to_the_same_length_changes_nothing(server: Server) -> None:
    """The new length is whole, not a difference: repeated, it takes nothing more."""
    lease = server.lease(pages=2)
    first = server.call("Extend", **server.named(lease), tokens=4 * server.page_tokens).lease
    again = server.call("Extend", **server.named(lease), tokens=4 * server.page_tokens).lease
    equal((again.tokens, pages_of(again)), (first.tokens, pages_of(first)), "tokens and pages after the second call")


@case("idempotent")
def a_length_it_has_is_granted_at_once(server: Server) -> None:
    """A shorter length takes nothing away."""
    lease = server.lease(pages=5)
    same = server.call("Extend", **server.named(lease), tokens=server.page_tokens).lease
    equal((same.tokens, same.pages), (lease.tokens, 5), "tokens and pages")


@case("whole-length")
def growing_within_a_page_takes_none(server: Server) -> None:
    """A partial page that is held already is filled first."""
    lease = server.lease(prompt_tokens=1)
    grown = server.call("Extend", **server.named(lease), tokens=server.page_tokens).lease
    equal((grown.tokens, grown.pages), (server.page_tokens, 1), "tokens and pages")


@case("conserved", needs=["idle"])
def growth_is_taken_from_what_is_free(server: Server) -> None:
    """The pool gives exactly the further pages."""
    lease = server.lease(pages=2)
    unheld = server.unheld()["host_pages"]
    server.call("Extend", **server.named(lease), tokens=7 * server.page_tokens)
    equal(unheld - server.unheld()["host_pages"], 5, "pages taken from 2 to 7")


@case("refusals")
def beyond_the_longest_is_not_busy(server: Server) -> None:
    """Longer than any request is NEVER_FITS."""
    lease = server.lease()
    tokens = server.max_request_tokens + 1
    refused = server.refused("Extend", Code.FAILED_PRECONDITION, "NEVER_FITS", **server.named(lease), tokens=tokens)
    equal(refused.retry_s, None, "RetryInfo of what can never be granted")


@case("atomic", needs=["idle"])
def a_full_pool_leaves_the_lease_as_it_was(server: Server) -> None:
    """Where there is no room it is POOL_BUSY, and the lease keeps what it had."""
    lease = server.lease(pages=1)
    server.fill()
    if server.amounts("free")["host_pages"]:
        raise Skipped("another pool is full before the pages are")
    named = server.named(lease, tokens=2 * server.page_tokens)
    server.refused("Extend", Code.RESOURCE_EXHAUSTED, "POOL_BUSY", **named)
    same = server.call("GetLease", lease_id=lease.id, tenant=server.tenant).lease
    equal((same.tokens, same.extents, same.state), (lease.tokens, lease.extents, lease.state), "the lease after")


@case("lifetime")
def a_lease_past_its_end_does_not_grow(server: Server) -> None:
    """Quarantined, it is LEASE_NOT_FOUND."""
    lease = server.lease(ttl={"nanos": 20_000_000})
    time.sleep(0.1)
    named = server.named(lease, tokens=2 * server.page_tokens)
    server.refused("Extend", Code.NOT_FOUND, "LEASE_NOT_FOUND", **named)


@case("refusals")
def a_length_of_nothing_or_beyond_reason_is_refused(server: Server) -> None:
    """Zero tokens are malformed; the largest number of the wire wraps nothing."""
    lease = server.lease()
    server.invalid("Extend", "tokens", **server.named(lease), tokens=0)
    for tokens in (2**64 - 1, 2**63):
        try_code = server.wire.begin("Extend", **server.named(lease), tokens=tokens)
        try:
            try_code.result()
        except Exception as refused:  # its code is what matters
            code = getattr(refused, "code", None)
            check(code in (Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION), f"{tokens} tokens: {refused}")
        else:
            check(False, f"a lease grew to {tokens} tokens")
