"""The publisher: writes one node's HisparseNode and Lease, and never harms the node.

::

    FollowedNode ─► wake ─► step ─┬─ who it is      (once, and when it is another)   ┐ one backoff
                                  ├─ what it has    (Pace says when)                 ┘
                                  └─ its Lease      (a third of its duration; not while the node is silent)
    stop ─► state Stopped, Lease released: unless another publisher has the object by now

Whatever the API server says, the node goes on: it does not know of this. Each failure is told with what to do, counted,
and tried again after a rest.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from hisparse_svc.kube import objects
from hisparse_svc.kube.api import Away, Rejected
from hisparse_svc.kube.pace import JITTER, REFRESH_S, Pace
from hisparse_svc.rpc.backoff import LONGEST_REST_S, Backoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from hisparse_svc.kube.objects import Condition, Document, Identity
    from hisparse_svc.kube.telling import Teller

LEASE_S = 30
"""Life of a Lease without a renewal, in whole seconds."""
SHORTEST_LEASE_S, LONGEST_LEASE_S = 5, 600
WRITE_S = 5.0
"""Longest that one write may take: less than the third of a Lease that is left when it is renewed."""
GOODBYE_S = 2.0
"""Longest that each of the two last writes may take, …"""
LAST_LOOK_S = 1.0
"""… and the look before them."""
LOOK_S = 1.0
"""Longest between two looks at the node: it falls silent without a word."""


class Writes(Protocol):
    """What is needed of `hisparse_svc.kube.api.Api`."""

    def apply(self, path: str, body: Document, *, manager: str, timeout_s: float) -> Document:
        """Make or change an object."""
        ...

    def look(self, path: str, body: Document, *, manager: str, timeout_s: float) -> Document:
        """Give what `apply` would leave there."""
        ...


class Follows(Protocol):
    """What is needed of `hisparse_svc.kube.following.FollowedNode`."""

    def condition(self) -> Condition:
        """Give the node as it is now."""
        ...


class Publisher:
    """Writes one node.

    Args:
        api: Where to.
        identity: As what.
        node: What is written.
        teller: Told of every write and failure.
        refresh_s: Between two writes where nothing changes much.
        lease_s: Life of the Lease without a renewal.
        wake: Set where the node has said something: it is looked at then.
        chance: Gives numbers from 0 to 1.
    """

    def __init__(
        self,
        api: Writes,
        identity: Identity,
        node: Follows,
        teller: Teller,
        *,
        refresh_s: float = REFRESH_S,
        lease_s: int = LEASE_S,
        wake: threading.Event | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._api, self._identity, self._node, self._teller = api, identity, node, teller
        self._lease_s, self._chance = lease_s, chance
        self._pace = Pace(refresh_s, chance=chance)
        self._rests = {"node": Backoff(chance=chance), "lease": Backoff(chance=chance)}
        self._is: Document | None = None
        """The object without its status, as it was applied last."""
        self._looked = False
        """Whether another publisher was looked for, before the first write."""
        self._renew_at = 0.0
        self._wake = wake if wake is not None else threading.Event()

    def run(self, stopping: threading.Event) -> None:
        """Write until told to stop, then say goodbye."""
        while not stopping.is_set():
            self._wake.clear()
            next_at = self.step(time.monotonic())
            self._wake.wait(min(max(next_at - time.monotonic(), 0.0), LOOK_S))
        self.goodbye()

    def step(self, now: float) -> float:
        """Write what is due; give when the next thing is, if nothing changes before."""
        self._teller.looked_at = time.monotonic()
        seen = self._node.condition()
        self._teller.saw(seen.state, seen.reason, now, known=seen.info is not None)
        nexts = [now + LOOK_S]
        if seen.info is not None:
            nexts.append(max(self._pace.due_at(seen, now), self._rests["node"].until))
            if nexts[-1] <= now:
                self._write_node(seen, now)
                nexts.append(now)
        if seen.info is not None and seen.state != objects.UNREACHABLE:
            nexts.append(max(self._renew_at, self._rests["lease"].until))
            if nexts[-1] <= now:
                self._renew(now)
                nexts.append(now)
        later = [at for at in nexts if at > now]
        return min(later) if len(later) == len(nexts) else now

    def _write_node(self, seen: Condition, now: float) -> None:
        identity = self._identity
        assert seen.info is not None  # noqa: S101 - the caller has looked
        body = objects.node_body(identity, seen.info)
        if not self._looked:
            self._looked = True
            address, refreshed_at = self._other(WRITE_S)
            if address and refreshed_at is not None:
                self._teller.shared(address, (datetime.now(UTC) - refreshed_at).total_seconds())
        if body != self._is and not self._write_who(body, now):
            return
        status = objects.status_body(identity, seen, datetime.now(UTC))
        path = objects.nodes_path(identity.namespace, identity.name, "status")
        there = self._apply("node", path, status, now)
        if there is None:
            return
        self._pace.written(seen, now)
        self._teller.wrote("node", self._rests["node"].succeeded())
        found = (there.get("spec") or {}).get("address", identity.address)
        if found != identity.address:
            self._teller.contested(found, now)
            self._write_who(body, now)

    def _other(self, most_s: float) -> tuple[str, datetime | None]:
        """Give the address that another publisher wrote into the object, and when; empty where none is to be seen."""
        path = objects.nodes_path(self._identity.namespace, self._identity.name)
        try:
            there = self._api.look(path, objects.named_body(self._identity), manager=objects.LOOKER, timeout_s=most_s)
        except (Away, Rejected):  # nothing is there, or a policy hides it; what is wrong the writes will say
            return "", None
        address, refreshed_at = objects.serving_address(there)
        return ("", None) if address == self._identity.address else (address, refreshed_at)

    def _write_who(self, body: Document, now: float) -> bool:
        """Write who the node is; whether it is done."""
        path = objects.nodes_path(self._identity.namespace, self._identity.name)
        self._is = None if self._apply("node", path, body, now) is None else body
        return self._is is not None

    def _renew(self, now: float) -> None:
        identity = self._identity
        body = objects.lease_body(identity, self._lease_s, datetime.now(UTC))
        if self._apply("lease", objects.leases_path(identity.namespace, identity.name), body, now) is not None:
            self._renew_at = now + self._lease_s / 3 * (1 - JITTER * self._chance())
            self._teller.wrote("lease", self._rests["lease"].succeeded())

    def _apply(self, what: str, path: str, body: Document, now: float) -> Document | None:
        """Write, and give what is there then; `None` where it is not done, which is told and tried after a rest."""
        rest = self._rests[what]
        try:
            return self._api.apply(path, body, manager=objects.MANAGER, timeout_s=WRITE_S)
        except (Away, Rejected) as failure:
            after_s = failure.retry_after_s if isinstance(failure, Rejected) else None
            rest_s = rest.failed(now, after_s, most_s=self._lease_s / 3 if what == "lease" else LONGEST_REST_S)
            self._teller.failed(what, failure, rest_s, rest.failures)
            if isinstance(failure, Rejected) and failure.status == 404 and path.endswith("/status"):
                self._is = None  # somebody deleted it: make it again
                self._pace.forget()
            return None

    def goodbye(self) -> None:
        """Say that the node leaves, and that nobody vouches for it any more; each is tried once.

        Where another publisher wrote the object last, it and the Lease are left to that one.
        """
        identity, seen = self._identity, self._node.condition()
        if self._is is None:
            return  # it never came
        address, _ = self._other(LAST_LOOK_S)
        if address:  # or its node would be away until its next write
            self._teller.left_to(address)
            return
        moment = datetime.now(UTC)
        left = replace(seen, state=objects.STOPPED, reason="its publisher was stopped")
        writes: list[tuple[str, str, dict[str, Any]]] = [
            (
                "node",
                objects.nodes_path(identity.namespace, identity.name, "status"),
                objects.status_body(identity, left, moment),
            ),
            (
                "lease",
                objects.leases_path(identity.namespace, identity.name),
                objects.lease_body(identity, self._lease_s, moment, released=True),
            ),
        ]
        for what, path, body in writes:
            try:
                self._api.apply(path, body, manager=objects.MANAGER, timeout_s=GOODBYE_S)
            except (Away, Rejected) as failure:
                self._teller.failed(what, failure, 0.0, 1)
            else:
                self._teller.wrote(what, 0)
