"""One request on its way through the fleet: what is sent, what each answer means, and how it ends. No I/O.

::

    step ─► Ask(node)    the shell sends `call` there ─► granted, or failed(error), or abandoned
         ─► Settle(…)    the shell releases there until it is safe ─► settled
         ─► Rest(s)      the shell waits
         ─► raises       why nobody takes it, with every attempt
"""

from __future__ import annotations

import math
import secrets
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from hisparse_svc import _core
from hisparse_svc.fleet import errors
from hisparse_svc.rpc import calls
from hisparse_svc.rpc.refusals import (
    DeadlineExceeded,
    Draining,
    NeverFits,
    NoAnswer,
    NotAllowed,
    Overloaded,
    PoolBusy,
    QuotaExceeded,
    Recovering,
    Refused,
    RequestIdReused,
    ServerFault,
    TurnedAway,
    Unreachable,
    Unsupported,
)

if TYPE_CHECKING:
    from hisparse_svc.errors import HiSparseError
    from hisparse_svc.fleet.book import Book, Known
    from hisparse_svc.fleet.settings import Settings
    from hisparse_svc.rpc import values
    from hisparse_svc.rpc.calls import Call

Tally = dict[str, int]
"""How many nodes stand where."""

MOST_TOKENS = 1 << 63
"""More than any node holds; sums beyond it are cut, so that they stay numbers of the core."""

RETRY_S = 1.0
"""When a node that says no for now, and not for how long, is asked again."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Send the journey's call there."""

    known: Known


@dataclass(frozen=True, slots=True)
class Settle:
    """Send `release` there, as `pace` says, until it is safe to ask another node; then on until it is done."""

    known: Known
    pace: _core.Settling
    release: Call[Any, Any]
    request: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Rest:
    """Wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Left:
    """A lease that is given up for another one."""

    known: Known
    lease: values.Lease
    ends_at: float
    """When it has ended by itself at the latest, by this process's own clock."""


class Leaving(Protocol):
    """A lease in hand, of either shell, that can be given up."""

    def leaving(self) -> Left:
        """Give it up for another one."""


class Journey:
    """One request.

    Args:
        book: The fleet's nodes.
        settings: The fleet's: time for everything but the wait, time for one node to answer, and ttl.
        request: What it needs. Without an id it gets a random one, without a ttl the fleet's.
        wait_s: Patience for room.
        instead_of: A lease that ends first.
    """

    def __init__(
        self,
        book: Book,
        settings: Settings,
        request: values.Request,
        *,
        wait_s: float,
        instead_of: Leaving | None = None,
    ) -> None:
        wait_s = calls.timeout(wait_s, "wait_s") if wait_s else 0.0
        left = None if instead_of is None else instead_of.leaving()
        self._book = book
        self.request = replace(
            request, request_id=request.request_id or secrets.token_hex(16), ttl_s=request.ttl_s or settings.ttl_s
        )
        self.attempt_s = settings.attempt_s
        self.call = calls.admit(self.request)
        self.attempts: list[errors.Attempt] = []
        self.asked = 0
        """Calls of Admit so far."""
        now = time.monotonic()
        self.ends_at = now + settings.timeout_s + wait_s
        key = (self.request.tenant, self.request.request_id)
        self._key = key
        self._asked_at = now
        self._pending: Settle | None = None
        if left is not None:
            self._pending = _leaving(left, now)
        avoiding = book.being_settled(key) + ([left.known.number] if left else [])
        tokens = request.prompt_tokens + request.generated_tokens + request.max_new_tokens
        self._placing = book.router.place(
            tokens=min(max(tokens, 0), MOST_TOKENS),
            pages=min(max(request.pages, 0), MOST_TOKENS),
            prefix_hashes=list(request.prefix_hashes),
            patience_s=wait_s,
            most_s=settings.timeout_s + wait_s,
            avoiding=avoiding,
            now_s=now,
        )

    def step(self) -> Ask | Settle | Rest:
        """Give the next step.

        Raises:
            HiSparseError: Why nobody takes it.
        """
        now = time.monotonic()
        while True:
            if self._pending is not None:
                if now >= self.ends_at:
                    raise self._unsettled(self._pending.known.member.name)
                return self._pending
            word, number, seconds = self._placing.next(now)
            if word == "ask":
                known = self._book.known(number or 0)
                if known is None:  # it has left between two lines
                    self._placing.answered("abandoned", now_s=now)
                    continue
                self._asked_at, self.asked = now, self.asked + 1
                return Ask(known)
            if word == "rest":
                return Rest(seconds)
            raise self._refusal(word)

    @property
    def settling(self) -> bool:
        """Whether what a node made of it is unknown, and the next step says to settle that."""
        return self._pending is not None

    @property
    def lease_ends_at(self) -> float:
        """When a lease that was just granted has ended by itself at the latest, by this process's own clock."""
        assert self.request.ttl_s is not None  # noqa: S101 - it was set at the start
        return self._asked_at + self.attempt_s + self.request.ttl_s

    def granted(self, known: Known, admission: values.Admission) -> None:
        """The lease is here."""
        self._book.told(known, admission.capacity)
        self._placing.answered("granted", shared_pages=admission.lease.shared_pages, now_s=time.monotonic())

    def failed(self, known: Known, error: HiSparseError) -> None:
        """Take in that the call failed.

        Raises:
            HiSparseError: The same, where no other node could answer otherwise.
        """
        now = time.monotonic()
        if isinstance(error, Refused) and error.capacity is not None:
            self._book.told(known, error.capacity)
        found = outcome(error)
        if found is None:
            self._placing.answered("abandoned", now_s=now)
            raise error
        answer, retry_s = found
        self.attempts.append(errors.Attempt(known.member.name, reason(error), str(error)))
        self._placing.answered(answer, retry_s=retry_s, now_s=now)
        if answer == "unknown":
            assert self.request.ttl_s is not None  # noqa: S101 - the journey has set it
            pace = _core.Settling(
                deadline_s=self._asked_at + self.attempt_s, ttl_s=self.request.ttl_s, seed=secrets.randbits(64)
            )
            release = calls.release("", self.request.request_id, self.request.tenant)
            self._book.settle(self._key, known.number, done=False)
            self._pending = Settle(known, pace, release, self._key)

    def abandoned(self) -> None:
        """The caller gave up, and the client has taken back what it may have got."""
        self._placing.answered("abandoned", now_s=time.monotonic())

    def presumed(self, known: Known) -> None:
        """Somebody else made the call, does not say how it went, and has not heard of a failure so far.

        It counts as granted where the node has spoken since, as a grant makes it do. How much of the prefix was there
        is not known then: the node counts as one that shares.
        """
        now = time.monotonic()
        freshness = self._book.router.freshness(known.number, now)
        spoke = freshness is not None and freshness[1] and freshness[0] < now - self._asked_at
        self._placing.answered("granted" if spoke else "abandoned", shared_pages=1, now_s=now)

    def settled(self) -> None:
        """Nothing is held any more where the last step said."""
        self._pending = None
        self._placing.settled()

    def _unsettled(self, name: str) -> HiSparseError:
        text = f"what {name} made of the request is not known: it gave no answer in time"
        remedy = "it is being taken back there; allow more time, or send it again with another request id"
        error: HiSparseError = errors.with_attempts(errors.Unsettled(f"{text}; {remedy}"), self.attempts)
        return error

    def _refusal(self, why: str) -> HiSparseError:
        tally = self._placing.tally()
        makers = {
            "empty": lambda _: self._book.emptiness(),
            "never_fits": self._never_fits,
            "draining": self._draining,
            "unreachable": lambda tally: self._book.silence(tally["silent"], self.attempts, too_long=tally["too_long"]),
            "no_retries": self._no_retries,
            "busy": self._busy,
        }
        error: HiSparseError = errors.with_attempts(makers[why](tally), self.attempts)
        return error

    def _never_fits(self, tally: Tally) -> HiSparseError:
        most = tally["most_tokens"]
        text = f"no node of {tally['nodes']} can ever hold it: the longest request that one can is {most:,} tokens"
        metadata = {"limit": "max_request_tokens", "value": str(most)}
        return errors.NeverFitsAnywhere(text, reason="NEVER_FITS", metadata=metadata)

    def _draining(self, tally: Tally) -> HiSparseError:
        text = f"all {tally['draining']} nodes that could hold it and answer are draining"
        return errors.AllDraining(text, reason="DRAINING")

    def _no_retries(self, _: Tally) -> HiSparseError:
        text = f"asked {self.asked} nodes, and this router may make no further attempt now"
        return errors.RetriesSpent(text, reason="OVERLOADED", retry_after_s=RETRY_S)

    def _busy(self, tally: Tally) -> HiSparseError:
        if {attempt.reason for attempt in self.attempts} == {"QUOTA"}:
            return errors.FleetQuota(self.attempts[-1].text, reason="QUOTA")
        others = (("draining", "drain"), ("silent", "do not answer"))
        parts = [f"{tally[part]} {words}" for part, words in others if tally[part]]
        besides = f" ({', '.join(parts)})" if parts else ""
        text = f"no room on any of {tally['could']} nodes that could hold it{besides}; asked {self.asked} of them"
        return errors.FleetBusy(f"{text}; {errors.FleetBusy.remedy}", reason="POOL_BUSY", retry_after_s=RETRY_S)


OUTCOMES: tuple[tuple[type[HiSparseError], str], ...] = (
    (NoAnswer, "unknown"),
    (TurnedAway, "unsent"),
    (Unreachable, "unknown"),  # unless the call did not leave
    (PoolBusy, "full"),
    (QuotaExceeded, "full"),
    (NeverFits, "never_fits"),
    (Draining, "unready"),
    (Recovering, "unready"),
    (Overloaded, "unready"),
    (DeadlineExceeded, "unready"),
    (NotAllowed, "failed"),
    (Unsupported, "failed"),
    (ServerFault, "unknown"),
    (RequestIdReused, ""),
)
"""The core's word for each way an attempt fails, the first that matches; empty where no other node helps."""


def outcome(error: HiSparseError) -> tuple[str, float] | None:
    """Give the core's word for a failed attempt, and when to ask that node again; `None` where no other node helps."""
    retry_s = error.retry_after_s if isinstance(error, Refused) else None
    rest_s = RETRY_S if retry_s is None else retry_s
    word = next((word for kind, word in OUTCOMES if isinstance(error, kind)), None)
    if isinstance(error, Unreachable) and error.unsent:
        word = "unsent"
    if word is None and isinstance(error, Refused):
        # A word that only newer nodes know: with a reason it is a decision, and nothing is held.
        word = "unready" if error.reason else "unknown"
    return (word, rest_s) if word else None


def reason(error: HiSparseError) -> str:
    """Give the word for why an attempt failed."""
    if isinstance(error, NoAnswer):
        return "NO_ANSWER"
    if isinstance(error, Unreachable):
        return "UNREACHABLE"
    if isinstance(error, Refused) and error.reason:
        return error.reason
    return "UNSUPPORTED" if isinstance(error, Unsupported) else "FAILED"


def ends_at(lease: values.Lease, ttl_s: float | None) -> float:
    """Give when a lease that was just put off has ended by itself at the latest, by this process's own clock."""
    if ttl_s is None:
        ttl_s = math.inf if lease.expires_at is None else _core.fleet_defaults()["router_ttl_s"]
    return time.monotonic() + ttl_s


def _leaving(left: Left, now: float) -> Settle:
    life_s = max(left.ends_at - now, 0.0)
    pace = _core.Settling(
        deadline_s=now, ttl_s=life_s if math.isfinite(life_s) else calls.LONGEST_S, seed=secrets.randbits(64)
    )
    release = calls.release(left.lease.id, "", left.lease.tenant)
    return Settle(left.known, pace, release, (left.lease.tenant, left.lease.request_id))
