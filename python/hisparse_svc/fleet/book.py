"""What a fleet knows of its nodes. No I/O: the shells say what they heard, and the core what it means.

::

    directory ─ members ─► joined, left ─► a watch each ─ seen, resumed, broken ─► Book ─► views, whom to ping
                                           an answer ──── told ──────────────────►  │
                                                                                    └─► _core.Router: whom to ask
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hisparse_svc import _core
from hisparse_svc.fleet import errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hisparse_svc.errors import HiSparseError
    from hisparse_svc.fleet.directories.member import Hint, Member
    from hisparse_svc.rpc.values import Capacity

PINGS_PER_SECOND = 200
"""Most calls a second that a fleet makes to hear whether silent nodes are still there."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as this fleet sees it. A hint: the node itself decides."""

    name: str
    target: str
    state: str
    """`live`, `stale` (live, but not heard of for a while), `draining`, `silent` (its watch is down) or `unseen`."""
    age_s: float | None
    """Seconds since its last word, by this process's own clock; the node's clock has no part in it."""
    capacity: Capacity | None
    """What it said last; `None` before its first word."""
    failure: str
    """Why its watch is down; empty where it is not."""
    hint: Hint | None = None
    """What the directory says of it, where it says more than who it is; the node's own word beats it."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A node's place in the order in which a request would ask."""

    name: str
    standing: str
    """`fits`, `full`, `too_long`, `draining`, `resting` (left alone after failures), `silent` or `unseen`."""
    shared_pages: int
    """Pages of the request's prefix that went there before."""
    left: float
    """Share of the node's fullest pool that would be left, from 0 to 1; 0 where it does not fit."""


@dataclass(eq=False, slots=True)
class Known:
    """One node."""

    member: Member
    number: int
    """The core's name for it."""
    capacity: Capacity | None = None
    failure: str = ""
    streaming: bool = False
    """Its watch's stream is open; nothing may have been heard on it for long."""
    pinged_at: float = 0.0
    hint: Hint | None = None
    """What the directory says of it."""
    left: bool = field(default=False)
    """It is no member any more."""


class Book:
    """The nodes of one fleet. Every method may be called from any thread.

    Args:
        policy: What makes one fitting node better than another.
        choices: How many fitting nodes are compared.
        stale_after_s: Age from which a view is used only where no fresher one fits.

    Raises:
        InvalidInput: A setting that is out of range.
    """

    def __init__(self, *, policy: str | None, choices: int | None, stale_after_s: float | None) -> None:
        self.stale_after_s: float = _core.fleet_defaults()["stale_after_s"] if stale_after_s is None else stale_after_s
        self.router = _core.Router(
            policy=policy,
            choices=choices,
            stale_after_s=self.stale_after_s,
            seed=secrets.randbits(64),
            now_s=time.monotonic(),
        )
        self._lock = threading.Lock()
        self._by_number: dict[int, Known] = {}
        self._by_name: dict[str, Known] = {}
        self._settling: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self.directory = "its directory"
        """What names the nodes, for errors."""
        self.listed = False
        """The directory has said who is in the fleet."""
        self.failure: HiSparseError | None = None
        """Why the directory cannot be followed, at the moment."""

    def take_members(self, members: Iterable[Member]) -> tuple[list[Known], list[Known]]:
        """Take in who is in the fleet now; gives who joined and who left. One that moved has done both."""
        wanted = {member.name: member for member in members}
        with self._lock:
            left = [known for known in self._by_number.values() if wanted.get(known.member.name) != known.member]
            for known in left:
                known.left = True
                del self._by_number[known.number], self._by_name[known.member.name]
                self.router.remove(known.number)
            joined = []
            for name, member in wanted.items():
                if name in self._by_name:
                    self._by_name[name].hint = member.hint
                else:
                    known = Known(member, self.router.add(time.monotonic()), hint=member.hint)
                    self._by_number[known.number] = self._by_name[name] = known
                    joined.append(known)
            self.listed, self.failure = True, None
        return joined, left

    def seen(self, known: Known, capacity: Capacity) -> None:
        """Its watch brought a view."""
        known.capacity, known.failure, known.streaming = capacity, "", True
        self.router.watched(known.number, anew=bool(capacity.resync), now_s=time.monotonic(), **_fields(capacity))

    def resumed(self, known: Known) -> None:
        """Its watch says that what is known of it still holds."""
        known.failure, known.streaming = "", True
        self.router.heard(known.number, time.monotonic())

    def told(self, known: Known, capacity: Capacity) -> None:
        """A call's answer brought a view; an older one than is known changes nothing."""
        shown = known.capacity
        if shown is None or (capacity.epoch, capacity.sequence) >= (shown.epoch, shown.sequence):
            known.capacity = capacity
        self.router.told(known.number, now_s=time.monotonic(), **_fields(capacity))

    def broken(self, known: Known, error: Exception, *, streaming: bool = False) -> float:
        """Its watch broke, or could not be opened; gives the rest in seconds before the next try, the probe."""
        known.failure, known.streaming = str(error), streaming
        return self.router.broken(known.number)

    def due(self) -> list[Known]:
        """Give the nodes that have a stream on which nothing was heard for long, to be pinged now.

        A hung node keeps its stream open and says nothing; so does an idle one.
        """
        now = time.monotonic()
        with self._lock:
            every = max(self.stale_after_s / 2, len(self._by_number) / PINGS_PER_SECOND)
            quiet = [known for known in self._by_number.values() if known.streaming and now - known.pinged_at >= every]
        due = []
        for known in quiet:
            freshness = self.router.freshness(known.number, now)
            if freshness is not None and (freshness[0] >= every or not freshness[1]):
                known.pinged_at = now
                due.append(known)
        return due

    def known(self, number: int) -> Known | None:
        """Give a node by the core's name for it; `None` where it has left."""
        return self._by_number.get(number)

    def named(self, name: str) -> Known:
        """Give a node by its name.

        Raises:
            UnknownNode: There is none.
        """
        with self._lock:
            if name in self._by_name:
                return self._by_name[name]
            raise errors.UnknownNode(name, self._by_name)

    def nodes(self) -> list[Known]:
        """Give all nodes."""
        with self._lock:
            return list(self._by_number.values())

    def views(self) -> list[NodeView]:
        """Give all nodes as this fleet sees them."""
        return [self._view(known) for known in self.nodes()]

    def _view(self, known: Known) -> NodeView:
        freshness = self.router.freshness(known.number, time.monotonic())
        if freshness is None:
            state, age_s = "silent" if known.failure else "unseen", None
        else:
            age_s, watched = freshness
            draining = known.capacity is not None and known.capacity.draining
            alive = "draining" if draining else "stale" if age_s > self.stale_after_s else "live"
            state = alive if watched else "silent"
        member = known.member
        return NodeView(member.name, member.target, state, age_s, known.capacity, known.failure, known.hint)

    def emptiness(self) -> errors.EmptyFleet:
        """Say that there is no node."""
        if self.failure is None and not self.listed:
            remedy = "look whether what keeps it is up, or allow a longer timeout"
            return errors.EmptyFleet(f"the fleet has no node: {self.directory} cannot be read: no answer yet; {remedy}")
        if self.failure is None:
            remedy = "look whether it is named rightly, and whether nodes are there"
            return errors.EmptyFleet(f"the fleet has no node: {self.directory} names none; {remedy}")
        said = errors.several(str(self.failure).splitlines(), ", and ")
        return errors.EmptyFleet(f"the fleet has no node: {said}")

    def silence(
        self, count: int, attempts: Iterable[errors.Attempt] = (), *, too_long: int = 0
    ) -> errors.NoNodeAnswers:
        """Say why so many nodes do not answer, where the request is too long for so many others."""
        failures = {known.member.name: known.failure for known in self.nodes() if known.failure}
        failures |= {attempt.node: attempt.text for attempt in attempts}
        said = errors.several(f"{name}: {text.partition('; ')[0]}" for name, text in failures.items())
        remedies = {text.partition("; ")[2] for text in failures.values()} - {""}
        remedy = remedies.pop() if len(remedies) == 1 else "look at the nodes, or name others"
        which = "" if too_long == 0 else " that could hold it"
        what = f"the node{which} does not answer" if count == 1 else f"none of {count} nodes{which} answers"
        if too_long:
            what += f" (it is too long for {too_long} more)"
        return errors.NoNodeAnswers(f"{what}: {said or 'nothing was heard of them yet'}; {remedy}", failures)

    def check(self) -> None:
        """Go on only where at least one node has said something.

        Raises:
            EmptyFleet: There is no node.
            NoNodeAnswers: None has.
        """
        nodes = self.nodes()
        if not nodes:
            raise self.emptiness()
        if all(known.capacity is None for known in nodes):
            raise self.silence(len(nodes))

    def rank(self, tokens: int, pages: int, prefix_hashes: Sequence[bytes]) -> list[Ranked]:
        """Give the order in which a request would ask; of those unheard, the ones nobody vouches for come last."""
        ranked = self.router.rank(tokens=tokens, pages=pages, prefix_hashes=prefix_hashes, now_s=time.monotonic())
        found: list[Ranked] = []
        doubtful: list[Ranked] = []
        for number, standing, shared_pages, left_milli in ranked:
            known = self.known(number)
            if known is not None:
                stale = known.hint is not None and known.hint.stale and standing in ("silent", "unseen")
                place = Ranked(known.member.name, standing, shared_pages, left_milli / 1_000)
                (doubtful if stale else found).append(place)
        return found + doubtful

    def being_settled(self, request: tuple[str, str]) -> list[int]:
        """Give the nodes where an earlier attempt of a request (tenant, id) is still being taken back."""
        with self._lock:
            return list(self._settling.get(request, ()))

    def settle(self, request: tuple[str, str], number: int, *, done: bool) -> None:
        """Note that it is being taken back there, or that this is done."""
        with self._lock:
            if not done:
                self._settling[request].add(number)
                return
            self._settling[request].discard(number)
            if not self._settling[request]:
                del self._settling[request]


def _fields(capacity: Capacity) -> dict[str, Any]:
    pools = [(pool.name, pool.free + pool.evictable + pool.scrubbing, pool.total) for pool in capacity.pools]
    return {
        "epoch": capacity.epoch,
        "sequence": capacity.sequence,
        "pools": pools,
        "largest_grant_tokens": capacity.largest_grant_tokens,
        "max_request_tokens": capacity.max_request_tokens,
        "draining": capacity.draining,
    }
