"""A router's half of admission: several nodes, one lease per request. Needs no GPU and no engine.

    python examples/router.py 100000 2000 unix:/run/a.sock 10.0.0.7:7411

::

    request ─► nodes, most room first ─► Admit on one
                 ▲      busy, draining, never fits, not there ─► the next one
                 │      no answer: settle that node first ─► the next one
                 └───── all busy: rest as long as the soonest RetryInfo says, until the deadline

A request never has two leases. An attempt whose outcome is unknown is settled before another node is asked: Release by
its request id, after its deadline, until the node answers; or until the lease that it may have got is past its ttl.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import select
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hisparse_svc import Client, HiSparseError, NoAnswer, Refused, Unreachable

if TYPE_CHECKING:
    from hisparse_svc.client import HeldLease

NEVER_FITS = "NEVER_FITS"
ATTEMPT_S = 1.0
"""Longest that one node may take to answer."""
TTL_S = 10.0
"""Life of a lease without Commit or Renew: also the longest time that a lost attempt can hold anything."""
SETTLE_REST_S = 0.1


@dataclass
class Tried:
    """What became of one attempt."""

    node: str
    reason: str


@dataclass
class Placed:
    """A request that has its memory."""

    node: str
    held: HeldLease
    tried: list[Tried] = field(default_factory=list)


class NoNode(Exception):
    """No node took the request."""

    def __init__(self, reason: str, tried: list[Tried]) -> None:
        super().__init__(reason)
        self.reason, self.tried = reason, tried


def why_silent(failure: HiSparseError) -> str:
    """A word for a node that did not answer."""
    return "NO_ANSWER" if isinstance(failure, NoAnswer) else "UNREACHABLE"


class Router:
    """Several nodes."""

    def __init__(self, targets: list[str]) -> None:
        self.clients = {target: Client(target, timeout_s=ATTEMPT_S) for target in targets}

    def place(self, prompt: int, max_new: int, *, request_id: str, deadline_s: float) -> Placed:
        """Reserve and commit on one node; raise `NoNode` where none takes it in time."""
        end = time.monotonic() + deadline_s
        tried: list[Tried] = []
        while True:
            round_begins, rest_s = len(tried), None
            for target in self.ranked(prompt + max_new, tried):
                try:
                    held = self.clients[target].admit(prompt, max_new, request_id=request_id, ttl_s=TTL_S)
                    held.commit(TTL_S)
                except (NoAnswer, Unreachable) as failure:
                    tried.append(Tried(target, why_silent(failure)))
                    self.settle(target, request_id)
                except Refused as refused:
                    tried.append(Tried(target, refused.reason))
                    if refused.retry_after_s is not None:  # busy, draining, recovering, overloaded
                        rest_s = min(refused.retry_after_s, rest_s or refused.retry_after_s)
                else:
                    return Placed(target, held, tried)
            reasons = {each.reason for each in tried[round_begins:]}
            # Jitter, so that routers that were refused together do not come back together.
            rest_s = (rest_s or 1.0) * random.uniform(0.8, 1.2)  # noqa: S311 - jitter, not a secret
            if reasons == {NEVER_FITS} or time.monotonic() + rest_s >= end:
                raise NoNode(tried[-1].reason, tried)
            time.sleep(rest_s)

    def ranked(self, tokens: int, tried: list[Tried]) -> list[str]:
        """Nodes that answer, by how often the request would fit, most first. A guess: only Admit decides."""
        counts = {}
        for target, client in self.clients.items():
            try:
                counts[target] = client.get_capacity([tokens]).fits[0].count
            except HiSparseError as failure:  # not asked to admit anything: nothing to settle there
                tried.append(Tried(target, why_silent(failure)))
        return sorted(counts, key=lambda target: -counts[target])

    def settle(self, target: str, request_id: str) -> None:
        """Make sure that a node holds nothing for a request whose answer was lost."""
        over = time.monotonic() + TTL_S
        answered = 0
        while answered < 2 and time.monotonic() < over:  # twice: a call may reach a node after its release did
            try:
                self.clients[target].release(request_id=request_id)
                answered += 1
            except HiSparseError:
                pass
            time.sleep(SETTLE_REST_S)

    def close(self) -> None:
        """Close the connections."""
        for client in self.clients.values():
            client.close()


def main() -> int:
    """Place one request, hold it until stdin ends, and give it back."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--request-id", default=secrets.token_hex(16))
    asked.add_argument("--deadline", type=float, default=10.0, metavar="S")
    asked.add_argument("prompt_tokens", type=int)
    asked.add_argument("max_new_tokens", type=int)
    asked.add_argument("target", nargs="+")
    given = asked.parse_args()
    router = Router(given.target)
    try:
        placed = router.place(
            given.prompt_tokens, given.max_new_tokens, request_id=given.request_id, deadline_s=given.deadline
        )
    except NoNode as none:
        print(json.dumps({"refused": none.reason, "tried": [vars(each) for each in none.tried]}), flush=True)
        return 4
    try:
        tried = [vars(each) for each in placed.tried]
        print(json.dumps({"node": placed.node, "lease_id": placed.held.lease.id, "tried": tried}), flush=True)
        while not select.select([sys.stdin], [], [], TTL_S / 3)[0]:  # here the request runs
            placed.held.renew(TTL_S)
    finally:
        placed.held.release()
        router.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
