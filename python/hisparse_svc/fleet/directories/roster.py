"""What a namespace's HisparseNodes and Leases say, put together. No I/O; times are of the caller's monotonic clock.

::

    HisparseNode ─► who, where, a hint of what it has ─┐
                                                       ├─► members: the roomiest in front, stale ones last
    Lease ─► renewed? ─► for how long it still counts ─┘

A Lease counts for its duration from when this process saw it renewed, as leader election does it: no other machine's
clock has a part in that. Only at first sight its age is the API server's: when it was written, against the time of the
answer. While the watch is down nobody can be seen to renew, so that time does not count.

A node leaves by its own word, `Stopped`, or where its object and its Lease are gone. An object that is deleted under a
Lease that goes on being renewed is a mistake, such as the whole kind deleted: its publisher makes it anew, and until
then the node stays. Of two objects at one address, as a pod under another name leaves them, one is the member.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hisparse_svc.fleet.directories.member import LONGEST_NAME, Hint, Member
from hisparse_svc.kube import objects
from hisparse_svc.kube.reflector import Changed, Listed, Stands
from hisparse_svc.rpc.target import HOST_PORT

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from hisparse_svc.kube.objects import Document
    from hisparse_svc.kube.reflector import Event
    from hisparse_svc.rpc.values import Capacity

MOST_DURATION_S = 3_600
"""A Lease counts no longer, whatever it says."""


@dataclass(slots=True)
class Heard:
    """An object, and when it was last written anew, by this process's clock."""

    document: Document
    word: str
    """Another one when somebody wrote it anew."""
    at: float
    capacity: Capacity | None = None
    """What the status tells, read once."""


class Roster:
    """The nodes of a namespace."""

    def __init__(self) -> None:
        self._nodes: dict[str, Heard] = {}
        self._deleted: dict[str, Heard] = {}
        """Objects that went without the word `Stopped`, as they were last."""
        self._leases: dict[str, Heard] = {}
        self._deaf_since: float | None = None
        """Since when no renewal can be seen."""

    def take_node(self, event: Event, now: float) -> bool:
        """Take in what happened to a HisparseNode; whether who is a member may be another now."""
        if isinstance(event, Changed):
            name = _name(event.document)
            before = self._nodes.get(name)
            _take(self._nodes, event, now, _node_word, "status")
            self._keep({} if before is None or not event.gone else {name: before}, now)
            return event.gone or before is None or _who(before.document) != _who(event.document)
        known = dict(self._nodes) if isinstance(event, Listed) else {}
        _take(self._nodes, event, now, _node_word, "status")
        self._keep(known, now)
        return isinstance(event, Listed)

    def _keep(self, known: dict[str, Heard], now: float) -> None:
        """Keep those of `known` whose object has gone, and forget those that nobody vouches for any more."""
        now = self._heard_until(now)
        self._deleted = {
            name: heard
            for name, heard in {**self._deleted, **known}.items()
            if name not in self._nodes and _state(heard) != objects.STOPPED and now < self._stale_at(name)
        }

    def take_lease(self, event: Event, now: float) -> bool:
        """Take in what happened to a Lease; whether who is stale may be another now."""
        name = _name(event.document) if isinstance(event, Changed) else ""
        stale = now >= self._stale_at(name)
        _take(self._leases, event, now, _lease_word, "")
        if isinstance(event, Stands) and self._deaf_since is not None:
            for heard in self._leases.values():
                heard.at += max(now - max(self._deaf_since, heard.at), 0.0)
            self._deaf_since = None
            return True
        return isinstance(event, Listed) or (isinstance(event, Changed) and stale != (now >= self._stale_at(name)))

    def lost(self, now: float) -> None:
        """Nothing is heard from now on, until a watch of Leases stands again."""
        if self._deaf_since is None:
            self._deaf_since = now

    def members(self, now: float) -> tuple[Member, ...]:
        """Give all nodes that have not left: those that grant and have most room first, stale ones last."""
        now = self._heard_until(now)
        self._keep({}, now)
        found: dict[str, Member] = {}
        for name, heard in (*self._nodes.items(), *self._deleted.items()):
            target, state = str((heard.document.get("spec") or {}).get("address", "")), _state(heard)
            if HOST_PORT.fullmatch(target) is None or state == objects.STOPPED:
                continue
            hint = Hint((state or "unknown").lower(), now >= self._stale_at(name), heard.at, heard.capacity)
            member = Member(name[:LONGEST_NAME], target, hint)
            found[target] = min(found.get(target, member), member, key=_claim)
        return tuple(sorted(found.values(), key=_order))

    def _heard_until(self, now: float) -> float:
        """Give the time up to which renewals could be seen."""
        return now if self._deaf_since is None else min(now, self._deaf_since)

    def next_stale_at(self, now: float) -> float:
        """Give when the next node becomes stale if nothing is heard before; infinity where none does."""
        if self._deaf_since is not None:
            return math.inf
        return min((at for at in map(self._stale_at, (*self._nodes, *self._deleted)) if at > now), default=math.inf)

    def _stale_at(self, name: str) -> float:
        heard = self._leases.get(name)
        spec = {} if heard is None else heard.document.get("spec") or {}
        if heard is None or not spec.get("holderIdentity"):
            return -math.inf  # nobody vouches for it
        duration_s = spec.get("leaseDurationSeconds")
        return heard.at + min(duration_s if isinstance(duration_s, int) else 0, MOST_DURATION_S)


def _take(
    known: dict[str, Heard], event: Event, now: float, word_of: Callable[[Document], str], subresource: str
) -> None:
    if isinstance(event, Listed):
        before = dict(known)
        known.clear()
        for document in event.items:
            heard = _heard(document, word_of, now - _age_s(document, subresource, event.server_time))
            known[_name(document)] = _since(before.get(_name(document)), heard, now)
    elif isinstance(event, Changed):
        last = known.pop(_name(event.document), None)
        if not event.gone:
            known[_name(event.document)] = _since(last, _heard(event.document, word_of, now), now)


def _heard(document: Document, word_of: Callable[[Document], str], at: float) -> Heard:
    return Heard(document, word_of(document), at, objects.read_capacity(document.get("status") or {}))


def _who(document: Document) -> tuple[object, ...]:
    """What makes a member, and its place among them."""
    status = document.get("status") or {}
    return (document.get("spec") or {}).get("address"), status.get("state")


def _state(heard: Heard) -> str:
    return str((heard.document.get("status") or {}).get("state") or "")


def _since(last: Heard | None, heard: Heard, now: float) -> Heard:
    """Give what was heard with when it was new: of one that says the same as the last, when that was."""
    if last is not None:
        heard.at = last.at if last.word == heard.word else now
    return heard


def _name(document: Document) -> str:
    return str((document.get("metadata") or {}).get("name", ""))


def _age_s(document: Document, subresource: str, server_time: datetime | None) -> float:
    written = objects.written_at(document, subresource)
    if written is None or server_time is None:
        return 0.0
    return max((server_time - written).total_seconds(), 0.0)


def _node_word(document: Document) -> str:
    status = document.get("status") or {}
    return f"{status.get('refreshedAt')} {status.get('state')}"


def _lease_word(document: Document) -> str:
    spec = document.get("spec") or {}
    return " ".join(
        str(spec.get(field)) for field in ("holderIdentity", "renewTime", "acquireTime", "leaseTransitions")
    )


def _claim(member: Member) -> tuple[bool, str]:
    """Which of several at one address is the member: one that is vouched for, and always the same one of these."""
    return member.hint is None or member.hint.stale, member.name


def _order(member: Member) -> tuple[bool, bool, int, str]:
    """Who is connected to first: where a router starts, the likeliest nodes are known first."""
    hint = member.hint
    assert hint is not None  # noqa: S101 - made above
    grant = 0 if hint.capacity is None else hint.capacity.largest_grant_tokens
    return hint.stale, hint.state != "serving", -grant, member.name
