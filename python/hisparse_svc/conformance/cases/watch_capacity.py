"""WatchCapacity: a snapshot, a sync marker, then what changed."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from hisparse_svc.conformance.case import case
from hisparse_svc.conformance.demands import Skipped, check, equal
from hisparse_svc.conformance.laws import kept_by_answer
from hisparse_svc.conformance.server import Code
from hisparse_svc.conformance.wire import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hisparse_svc.conformance.server import Server
    from hisparse_svc.conformance.wire import Stream

WATCH_S = 5.0
"""Longest that a case watches: a message that never comes ends it."""
TOLD_WITHIN_S = 2.0
"""Longest that a change may take to a watcher over a network before it counts as lost; on one machine it is 50 ms."""
MOST_HZ = 20


@contextlib.contextmanager
def watching(server: Server, **fields: Any) -> Iterator[tuple[Stream, Any]]:
    """A watch that has had its snapshot and its sync marker; gives the stream and the snapshot's message."""
    with server.watch(timeout_s=WATCH_S, **fields) as told:
        first = next(told)
        kept_by_answer(first)
        equal(first.WhichOneof("event"), "snapshot", "first message")
        equal(next(told).WhichOneof("event"), "sync", "second message")
        yield told, first


def next_delta(told: Stream, after: int) -> Any:
    """Give the next delta; it must be newer."""
    message = next(told)
    kept_by_answer(message)
    equal(message.WhichOneof("event"), "delta", "message after the sync marker")
    check(message.sequence > after, f"sequence of a delta must be above {after}, and is {message.sequence}")
    return message


@case("fresh")
def a_watch_begins_with_everything(server: Server) -> None:
    """The snapshot is what GetCapacity says, with all pools."""
    with watching(server) as (_, first):
        seen = server.capacity()
        equal(first.epoch, seen.epoch, "epoch")
        equal([pool.name for pool in first.snapshot.pools], [pool.name for pool in seen.pools], "pools of the snapshot")
        equal((first.epoch, first.sequence), (first.snapshot.epoch, first.snapshot.sequence), "stamp of the message")


@case("fresh")
def a_change_is_told_soon_and_in_order(server: Server) -> None:
    """Each grant and each release reaches the watcher, with growing sequences."""
    with watching(server) as (told, first):
        last = first.sequence
        for turn in range(6):
            lease = server.lease()
            begun = time.monotonic()
            last = next_delta(told, last).sequence
            took = time.monotonic() - begun
            check(took < TOLD_WITHIN_S, f"grant {turn} was told after {took:.1f} s")
            server.release(lease)
            last = next_delta(told, last).sequence


@case("fresh", needs=["idle"])
def deltas_add_up_to_the_node(server: Server) -> None:
    """Snapshot and deltas together are what GetCapacity gives: no change is lost."""
    with watching(server) as (told, first):
        pools = {(pool.name, pool.numa_node): pool for pool in first.snapshot.pools}
        taken = [server.lease(pages=1 + turn) for turn in range(3)]
        for lease in taken[:2]:
            server.release(lease)
        seen = server.capacity()
        last = first.sequence
        while last < seen.sequence:
            message = next_delta(told, last)
            last = message.sequence
            pools |= {(pool.name, pool.numa_node): pool for pool in message.delta.pools}
        if last == seen.sequence:  # a node that overwrites pages goes on by itself
            equal(list(pools.values()), list(seen.pools), "pools by snapshot and deltas")
            equal(message.delta.largest_grant_tokens, seen.largest_grant_tokens, "largest_grant_tokens of the delta")


@case("fresh")
def lengths_are_answered_in_every_message(server: Server) -> None:
    """Snapshot and deltas say what fits of each length asked."""
    with watching(server, lengths=[64, 4096]) as (told, first):
        equal([fit.tokens for fit in first.fits], [64, 4096], "lengths in the snapshot")
        server.lease()
        equal([fit.tokens for fit in next_delta(told, first.sequence).fits], [64, 4096], "lengths in a delta")


@case("fresh")
def every_watcher_is_told(server: Server) -> None:
    """Two watchers see the same change."""
    with watching(server) as (one, first), watching(server) as (other, second):
        server.lease()
        for told, seen in ((one, first), (other, second)):
            next_delta(told, seen.sequence)


@case("fresh")
def many_changes_are_few_messages(server: Server) -> None:
    """A busy node sends each watcher at most 20 messages a second, and the last of them is the newest."""
    with watching(server) as (told, first):
        begun = time.monotonic()
        while time.monotonic() - begun < 1.0:
            server.release(server.lease())
        newest, last, messages = server.capacity().sequence, first.sequence, 0
        while last < newest:
            last, messages = next_delta(told, last).sequence, messages + 1
        took = time.monotonic() - begun
        check(messages <= MOST_HZ * took + 2, f"{messages} messages within {took:.2f} s, at most {MOST_HZ} a second")


@case("fresh")
def a_watch_goes_on_from_its_token(server: Server) -> None:
    """Resumed, a watch says that it goes on, or that it cannot and begins anew; either way the picture is whole."""
    with watching(server) as (_, first):
        token = first.resume_token
    if not token:
        raise Skipped("the service gives no resume tokens")
    server.lease()
    newest = server.capacity().sequence
    with server.watch(timeout_s=WATCH_S, resume_token=token) as told:
        events, last = [], 0
        while "sync" not in events:
            message = next(told)
            events.append(message.WhichOneof("event"))
            last = max(last, message.sequence)
        check(events in (["delta", "sync"], ["resync", "snapshot", "sync"]), f"messages after a resume: {events}")
        check(last >= newest, f"a resumed watch is at sequence {last}, and the node was at {newest} before")


@case("fresh")
def a_token_of_nobody_is_never_gone_on_from(server: Server) -> None:
    """A token that the service did not give leads to a whole snapshot, or is malformed."""
    try:
        with server.watch(timeout_s=WATCH_S, resume_token=b"no token of yours") as told:
            events = []
            while "sync" not in events:
                events.append(next(told).WhichOneof("event"))
            check("snapshot" in events, f"it began with {events}, without a snapshot")
    except Refused as refused:
        equal(refused.code, Code.INVALID_ARGUMENT, "code for a token of nobody")


@case("refusals")
def a_watch_of_a_length_of_nothing_is_refused(server: Server) -> None:
    """A watch's lengths have the rules of GetCapacity's."""
    try:
        with server.watch(timeout_s=WATCH_S, lengths=[0]) as told:
            next(told)
    except Refused as refused:
        equal(refused.code, Code.INVALID_ARGUMENT, "code for a length of 0")
        check(any(field.startswith("lengths") for field in refused.fields), f"must name lengths: {refused.fields}")
        return
    check(False, "a length of 0 was answered")


@case("fresh")
def a_watch_that_ends_gives_its_place_back(server: Server) -> None:
    """Watches opened and ended one after another are never too many."""
    for _ in range(64):
        with watching(server):
            pass
