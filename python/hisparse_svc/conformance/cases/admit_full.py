"""Admit on a node that is full: busy, waiting, deadlines. These cases need a node of their own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from google.rpc import error_details_pb2

from hisparse_svc.conformance.case import case
from hisparse_svc.conformance.demands import Skipped, check, equal
from hisparse_svc.conformance.server import OVERWRITTEN, Code
from hisparse_svc.conformance.wire import Refused

if TYPE_CHECKING:
    from hisparse_svc.conformance.server import Server

SOON_S = 0.15
"""Long enough for a call to reach the service and begin to wait."""


@case("refusals", needs=["idle"])
def a_full_pool_is_busy(server: Server) -> None:
    """POOL_BUSY names the pool, when to try again, and the node as it is."""
    server.fill()
    refused = server.refused("Admit", Code.RESOURCE_EXHAUSTED, "POOL_BUSY", **server.asked())
    check(refused.capacity is not None, "POOL_BUSY must carry hisparse.v1.Capacity")
    equal(server.unheld(refused.capacity), server.unheld(), "free (or being overwritten) in the refusal, and now")
    equal(refused.info.metadata["pool"], refused.pools[0], "pool in ErrorInfo, and in QuotaFailure")
    check(refused.has(error_details_pb2.RetryInfo), "POOL_BUSY must say when to try again")


@case("atomic", needs=["idle"])
def a_refusal_takes_nothing(server: Server) -> None:
    """Where one pool has too little, the others give nothing."""
    page, longest = server.page_tokens, server.max_request_tokens
    server.lease(prompt_tokens=longest)
    before = server.capacity()
    if before.largest_grant_tokens >= longest:
        raise Skipped("one longest request leaves room for another")
    server.refused("Admit", Code.RESOURCE_EXHAUSTED, "POOL_BUSY", **server.asked(prompt_tokens=longest))
    after = server.capacity()
    equal(server.books(after), server.books(before), f"pools after a refusal, in pages of {page} tokens")


@case("atomic", needs=["idle"])
def the_last_room_is_granted_once(server: Server) -> None:
    """Of many calls at the same time exactly as many are granted as fit."""
    taken = server.fill()
    server.release(taken[-1])
    while server.capacity().largest_grant_tokens == 0:
        time.sleep(0.01)
    length = server.capacity().largest_grant_tokens
    # Once for the zeroes: what another tenant left there is overwritten, and none of the 64 waits for that.
    server.release(server.call("Admit", **server.asked(prompt_tokens=length, wait=OVERWRITTEN)).lease)
    (fit,) = server.capacity(length).fits
    answers = server.together([("Admit", server.asked(prompt_tokens=length)) for _ in range(64)])
    refused = [answer for answer in answers if isinstance(answer, Refused)]
    equal(len(answers) - len(refused), fit.count, f"grants among {len(answers)} calls for {length} tokens")
    equal({each.reason for each in refused}, {"POOL_BUSY"}, "reasons of the refusals")


@case("refusals", needs=["idle"])
def giving_back_makes_room(server: Server) -> None:
    """After a release the refused request is granted."""
    taken = server.fill()
    asked = server.asked(prompt_tokens=taken[0].tokens)
    server.refused("Admit", Code.RESOURCE_EXHAUSTED, "POOL_BUSY", **asked)
    for lease in taken:
        server.release(lease)
    server.call("Admit", **asked, wait={"seconds": 5})


@case("deadline", needs=["idle"])
def a_wait_ends_when_room_comes(server: Server) -> None:
    """Admit with `wait` is granted as soon as something is given back."""
    taken = server.fill()
    coming = server.begin("Admit", **server.asked(wait={"seconds": 8}))
    time.sleep(SOON_S)
    check(not coming.done(), "a call that waits ended before there was room")
    server.release(taken[0])
    lease = coming.result().lease
    check(lease.id, "a granted lease must have an id")
    server.call("Release", lease_id=lease.id, tenant=server.tenant)


@case("deadline", needs=["idle"])
def a_wait_runs_out_as_busy(server: Server) -> None:
    """Nothing came within `wait`: POOL_BUSY, neither much before nor much after."""
    server.fill()
    begun = time.monotonic()
    server.refused("Admit", Code.RESOURCE_EXHAUSTED, "POOL_BUSY", **server.asked(wait={"nanos": 300_000_000}))
    took = time.monotonic() - begun
    check(0.28 <= took < 5, f"a wait of 0.3 s was answered after {took:.2f} s")


@case("deadline", needs=["idle"])
def past_its_deadline_nothing_is_reserved(server: Server) -> None:
    """A call whose deadline passes while it waits is granted nothing, not even when there is room later."""
    taken = server.fill()
    asked = server.asked(request_id="too late", wait={"seconds": 8})
    try:
        server.call("Admit", **asked, timeout_s=0.3)
    except Refused as refused:
        equal(refused.code, Code.DEADLINE_EXCEEDED, "code of a call past its deadline")
    for lease in taken:
        server.release(lease)
    time.sleep(SOON_S)
    released = server.call("Release", request_id="too late", tenant=server.tenant)
    check(released.already_released, "a call past its deadline left a lease")


@case("deadline", needs=["idle"])
def who_stops_waiting_gets_nothing(server: Server) -> None:
    """A cancelled call leaves the line."""
    taken = server.fill()
    coming = server.begin("Admit", **server.asked(request_id="gone", wait={"seconds": 8}))
    time.sleep(SOON_S)
    coming.cancel()
    time.sleep(SOON_S)
    for lease in taken:
        server.release(lease)
    time.sleep(SOON_S)
    released = server.call("Release", request_id="gone", tenant=server.tenant)
    check(released.already_released, "a cancelled call left a lease")


@case("deadline", needs=["idle"])
def the_higher_priority_goes_first(server: Server) -> None:
    """Of two that wait, the one of higher priority is granted first, although it came later."""
    taken = server.fill()
    whole = taken[0].tokens
    low = server.begin("Admit", **server.asked(prompt_tokens=whole, priority=-5, wait={"seconds": 4}))
    time.sleep(SOON_S)
    high = server.begin("Admit", **server.asked(prompt_tokens=whole, priority=5, wait={"seconds": 4}))
    time.sleep(SOON_S)
    server.release(taken[0])
    lease = high.result().lease
    check(not low.done(), "the lower priority was answered first")
    server.call("Release", lease_id=lease.id, tenant=server.tenant)
    low.result()


@case("idempotent", needs=["idle"])
def one_name_that_waits_twice_is_one_lease(server: Server) -> None:
    """A request that is sent again while it waits gets one lease, told to both callers."""
    taken = server.fill()
    asked = server.asked(request_id="waits twice", wait={"seconds": 8})
    first, second = (server.begin("Admit", **asked) for _ in range(2))
    time.sleep(SOON_S)
    server.release(taken[0])
    leases = {coming.result().lease.id for coming in (first, second)}
    equal(len(leases), 1, "leases of one request id")
    server.call("Release", request_id="waits twice", tenant=server.tenant)


@case("lifetime", needs=["idle"])
def what_runs_out_makes_no_room_for_who_waits(server: Server) -> None:
    """A lease that expires is quarantined: nobody gets its pages before it is released."""
    lease = server.lease(prompt_tokens=server.capacity().largest_grant_tokens, ttl={"nanos": 400_000_000})
    if server.capacity().largest_grant_tokens:
        raise Skipped("one longest request leaves room for another")
    coming = server.begin("Admit", **server.asked(request_id="after it", wait={"seconds": 8}))
    time.sleep(0.7)
    check(not coming.done(), "pages of an expired lease were granted before they were released")
    server.release(lease)
    coming.result()
    server.call("Release", request_id="after it", tenant=server.tenant)


@case("deadline", needs=["idle"])
def release_and_renew_work_on_a_full_node(server: Server) -> None:
    """A full node still answers Renew, Commit, GetLease and Release."""
    lease = server.fill()[0]
    server.refused("Admit", Code.RESOURCE_EXHAUSTED, "POOL_BUSY", **server.asked())
    server.call("Renew", **server.named(lease))
    server.call("Commit", **server.named(lease))
    server.call("GetLease", lease_id=lease.id, tenant=server.tenant)
    check(not server.release(lease).already_released, "already_released of a live lease")


@case("deadline")
def a_lost_answer_leaves_nothing_that_release_does_not_find(server: Server) -> None:
    """Calls with hardly any time: whatever became of them, Release by request id gives it back."""
    names = [f"hasty {turn}" for turn in range(24)]
    lost = 0
    for turn, name in enumerate(names):
        try:
            server.call("Admit", **server.asked(request_id=name), timeout_s=0.0002 * (turn + 1))
        except Refused as refused:
            if refused.reason != "POOL_BUSY":
                equal(refused.code, Code.DEADLINE_EXCEEDED, "code of a call without time")
            lost += 1
        server.call("Release", request_id=name, tenant=server.tenant)
    time.sleep(SOON_S)
    for name in names:  # again: a call may have come to the service after its release
        server.call("Release", request_id=name, tenant=server.tenant)
    left = [lease.request_id for lease in server.call("ListLeases", tenant=server.tenant).leases]
    equal(left, [], f"leases left of {lost} calls that ran out of time")
