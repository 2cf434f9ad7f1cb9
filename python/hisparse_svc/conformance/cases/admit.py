"""Admit, what it grants: the whole length, once per request id."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from hisparse_svc._proto import types_pb2
from hisparse_svc.conformance.case import case
from hisparse_svc.conformance.demands import Skipped, check, equal
from hisparse_svc.conformance.server import OVERWRITTEN, Code

if TYPE_CHECKING:
    from hisparse_svc.conformance.server import Server

CLOCKS_APART_S = 300.0
MOST_ID_BYTES = 64


def left_s(lease: types_pb2.Lease, observed_ns: int) -> float:
    """Seconds that a lease has from a moment of the service's own clock."""
    return float(lease.expire_time.ToNanoseconds() - observed_ns) / 1e9


@case("whole-length")
def the_whole_length_is_granted(server: Server) -> None:
    """Prompt, generated and new tokens together, in whole pages, a partial one counted as one."""
    page = server.page_tokens
    lease = server.lease(prompt_tokens=page + 1, generated_tokens=page, max_new_tokens=page)
    equal((lease.tokens, lease.pages), (3 * page + 1, 4), f"tokens and pages of {page} tokens")
    equal(sum(extent.page_count for extent in lease.extents), 4, "pages in the extents")


@case("lifetime")
def a_grant_says_what_it_is(server: Server) -> None:
    """The lease has an id, its names, its state, its epoch and its end."""
    answer = server.admit(request_id="a name of my own")
    lease = answer.lease
    check(0 < len(lease.id) <= MOST_ID_BYTES and lease.id.isascii(), f"id must be short ASCII: {lease.id!r}")
    equal((lease.request_id, lease.tenant), ("a name of my own", server.tenant), "request_id and tenant")
    equal(lease.state, types_pb2.LEASE_STATE_RESERVED, "state")
    equal(lease.epoch, server.epoch, "epoch")
    check(not answer.repeated_request, "repeated_request of a first call")
    left = left_s(lease, answer.capacity.observed_at.ToNanoseconds())
    wanted = server.limits.get("uncommitted_ttl_ms", 30_000) / 1e3
    check(wanted - 1 <= left <= wanted + 1, f"expire_time is {left:.1f} s away, and the default ttl is {wanted:.0f} s")


@case("conserved", needs=["idle"])
def a_grant_moves_from_free_to_reserved(server: Server) -> None:
    """The capacity in the answer is the node after the grant: every pool gave what the lease holds."""
    before = server.capacity()
    answer = server.admit(pages=5)
    was, now = server.unheld(before), server.unheld(answer.capacity)
    reserved_before, reserved = server.amounts("reserved", before), server.amounts("reserved", answer.capacity)
    for pool, amount in {"host_pages": 5, "seats": 1, "request_slots": 1}.items():
        equal(now[pool] - was[pool], -amount, f"change of {pool} that is free (or being overwritten)")
        equal(reserved[pool] - reserved_before[pool], amount, f"change of {pool}.reserved")
    check(answer.capacity.sequence > before.sequence, "a grant must have a new sequence")


@case("whole-length")
def pages_may_be_asked_for_instead(server: Server) -> None:
    """`pages` reserves so many, and the tokens that they hold."""
    lease = server.lease(pages=3)
    asked = server.asked(prompt_tokens=0) | {"pages": 3}
    by_pages = server.granted("Admit", [asked], **asked).lease
    equal((by_pages.pages, by_pages.tokens), (3, lease.tokens), "pages and tokens")


@case("atomic")
def no_two_leases_share_a_page(server: Server) -> None:
    """Extents of live leases are disjoint."""
    seen: dict[int, str] = {}
    for _ in range(3):
        lease = server.lease(pages=7)
        for extent in lease.extents:
            for page in range(extent.first_page, extent.first_page + extent.page_count):
                check(page not in seen, f"page {page} is in lease {seen.get(page)} and in {lease.id}")
                seen[page] = lease.id
    equal(len(seen), 21, "pages of three leases of 7")


@case("idempotent")
def the_same_request_is_granted_once(server: Server) -> None:
    """The same request id with the same parameters gives the same lease, and says so."""
    first = server.admit(pages=2, request_id="once")
    for _ in range(3):
        again = server.admit(pages=2, request_id="once")
        equal((again.lease.id, again.repeated_request), (first.lease.id, True), "lease and repeated_request")
        equal(again.lease.extents, first.lease.extents, "extents")
    if server.info:
        equal(len(server.call("ListLeases", tenant=server.tenant).leases), 1, "leases of the tenant")


@case("idempotent")
def a_repeated_request_finds_its_committed_lease(server: Server) -> None:
    """After Commit the same request still gives the same lease, in its new state."""
    lease = server.lease(request_id="kept")
    server.call("Commit", **server.named(lease))
    again = server.admit(request_id="kept")
    equal((again.lease.id, again.lease.state), (lease.id, types_pb2.LEASE_STATE_COMMITTED), "lease and state")


@case("idempotent")
def a_request_id_with_other_parameters_is_refused(server: Server) -> None:
    """Another length under a name in use is ALREADY_EXISTS, with the lease that has the name."""
    lease = server.lease(pages=1, request_id="taken")
    refused = server.refused(
        "Admit", Code.ALREADY_EXISTS, "REQUEST_ID_REUSED", **server.asked(pages=2, request_id="taken")
    )
    equal(refused.info.metadata["lease_id"], lease.id, "lease_id in the details")


@case("isolation")
def a_request_id_is_a_tenants_own(server: Server) -> None:
    """Two tenants may use one name."""
    mine = server.lease(request_id="shared")
    theirs = server.foreign_lease(request_id="shared")
    check(mine.id != theirs.id, "one lease for the same request id of two tenants")


@case("idempotent")
def no_request_id_is_a_new_request(server: Server) -> None:
    """Without a request id every call is a lease of its own."""
    first, second = server.lease(request_id=""), server.lease(request_id="")
    check(first.id != second.id, "two calls without request id gave one lease")


@case("idempotent")
def a_released_name_is_free_again(server: Server) -> None:
    """After Release the request id names a new lease, with a new id."""
    first = server.lease(request_id="again")
    server.release(first)
    second = server.admit(request_id="again")
    check(second.lease.id != first.id, "a released lease's id was given again")
    check(not second.repeated_request, "repeated_request after a release")


@case("idempotent")
def one_name_at_the_same_time_is_one_lease(server: Server) -> None:
    """Sixteen calls at once with one request id get one lease."""
    asked = server.asked(pages=1, request_id="raced")
    answers = server.together([("Admit", asked)] * 16)
    granted = [answer for answer in answers if not isinstance(answer, Exception)]
    check(granted, f"none was granted: {answers[0]}")
    equal(len({answer.lease.id for answer in granted}), 1, "leases")
    equal(sum(not answer.repeated_request for answer in granted), 1, "answers that are not repeated_request")


@case("idempotent")
def validate_only_reserves_nothing(server: Server) -> None:
    """It decides and says, and nothing is held."""
    answer = server.admit(pages=4, request_id="looked", validate_only=True)
    equal((answer.lease.id, len(answer.lease.extents), answer.lease.pages), ("", 0, 4), "id, extents and pages")
    check(not server.admit(pages=4, request_id="looked").repeated_request, "validate_only left a lease")


@case("refusals")
def validate_only_is_refused_like_the_call(server: Server) -> None:
    """What the call would refuse, validate_only refuses alike."""
    too_long = server.asked(prompt_tokens=server.max_request_tokens + 1, validate_only=True)
    server.refused("Admit", Code.FAILED_PRECONDITION, "NEVER_FITS", **too_long)
    server.invalid("Admit", "prompt_tokens", **server.asked(prompt_tokens=0, validate_only=True))
    lease = server.lease(pages=1, request_id="there")
    reused = server.asked(pages=2, request_id="there", validate_only=True)
    refused = server.refused("Admit", Code.ALREADY_EXISTS, "REQUEST_ID_REUSED", **reused)
    equal(refused.info.metadata["lease_id"], lease.id, "lease_id in the details")


@case("lifetime")
def a_ttl_is_kept_to(server: Server) -> None:
    """The lease ends when its ttl says."""
    answer = server.admit(ttl={"seconds": 100, "nanos": 500_000_000})
    left = left_s(answer.lease, answer.capacity.observed_at.ToNanoseconds())
    check(abs(left - 100.5) <= 1, f"expire_time is {left:.2f} s away, asked for 100.5 s")


@case("lifetime")
def what_runs_out_is_quarantined(server: Server) -> None:
    """An uncommitted lease ends by its ttl: it is quarantined, and cannot be committed or renewed."""
    lease = server.lease(ttl={"nanos": 50_000_000})
    time.sleep(0.2)
    server.refused("Commit", Code.NOT_FOUND, "LEASE_NOT_FOUND", **server.named(lease))
    server.refused("Renew", Code.NOT_FOUND, "LEASE_NOT_FOUND", **server.named(lease))
    found = server.call("GetLease", lease_id=lease.id, tenant=server.tenant).lease
    equal(found.state, types_pb2.LEASE_STATE_QUARANTINED, "state of a lease past its end")
    server.release(lease)


@case("lifetime", needs=["idle"])
def quarantined_pages_are_not_free(server: Server) -> None:
    """What an expired lease held counts as quarantined until it is released."""
    unheld = server.unheld()["host_pages"]
    lease = server.lease(pages=6, ttl={"nanos": 50_000_000})
    time.sleep(0.2)
    seen = server.capacity()
    equal(server.amounts("quarantined", seen)["host_pages"], 6, "quarantined pages")
    equal(server.unheld(seen)["host_pages"], unheld - 6, "free pages (or being overwritten)")
    server.release(lease)
    equal(server.amounts("quarantined")["host_pages"], 0, "quarantined pages after the release")


@case("lifetime")
def the_name_of_an_ended_lease_is_free(server: Server) -> None:
    """After its lease ran out, a request id may be admitted anew."""
    first = server.lease(request_id="late", ttl={"nanos": 20_000_000})
    time.sleep(0.1)
    second = server.admit(request_id="late")
    check(second.lease.id != first.id and not second.repeated_request, "an ended lease was given again")


@case("fresh", needs=["idle"])
def a_load_report_rides_on_the_answer(server: Server) -> None:
    """ORCA, for balancers that ask: use of the host pages, and of the fullest pool, as of this decision."""
    asked = server.asked(pages=3, wait=OVERWRITTEN)
    coming = server.begin("Admit", headers=[("endpoint-load-metrics-format", "JSON")], **asked)
    answer, report = coming.result(), coming.header("endpoint-load-metrics")
    server.release(answer.lease)
    if not report:
        raise Skipped("the service sends no load reports")
    check(report.startswith("JSON "), f"a report in JSON was asked for: {report[:80]}")
    told = json.loads(report.removeprefix("JSON "))
    free, total = (server.amounts(part, answer.capacity) for part in ("free", "total"))
    used = {pool: 1 - free[pool] / total[pool] for pool in total}
    for name, wanted in (("mem_utilization", used["host_pages"]), ("application_utilization", max(used.values()))):
        check(abs(told[name] - wanted) < 1e-9, f"{name} is {told[name]}, and the pools are used to {used}")


@case("epoch")
def an_epoch_that_is_not_current_is_refused(server: Server) -> None:
    """Another epoch is STALE_EPOCH with the current one; the current one and 0 are taken."""
    refused = server.refused("Admit", Code.FAILED_PRECONDITION, "STALE_EPOCH", **server.asked(epoch=server.epoch + 1))
    equal(refused.info.metadata["current_epoch"], str(server.epoch), "current_epoch in the details")
    server.lease(epoch=server.epoch)
    server.lease(epoch=0)
