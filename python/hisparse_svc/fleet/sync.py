"""The blocking fleet: threads around the journey's steps.

::

    Follower ─ members ─► a client and a watching thread per node ─► Book        pinging thread ─► Book
    admit: Journey.step ─► send, release or rest in the caller's thread     what is still to be taken back: a thread
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Unpack

from hisparse_svc.errors import HiSparseError
from hisparse_svc.fleet.following import Follower
from hisparse_svc.fleet.journey import Ask, Journey, Rest, Settle
from hisparse_svc.fleet.settings import CLOSE_S
from hisparse_svc.fleet.shell import Shell
from hisparse_svc.fleet.sync_node import HeldLease, Node
from hisparse_svc.rpc import values

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hisparse_svc.client import Client
    from hisparse_svc.fleet import settings as reading
    from hisparse_svc.fleet.book import Known, NodeView, Ranked
    from hisparse_svc.fleet.directories import Directory, Member

__all__ = ["Fleet", "HeldLease"]

PINGERS = 8
"""Pings under way at once: one that hangs takes `attempt_s`."""


class Fleet(Shell[Node]):
    """Many nodes as one, safe to share between threads.

    Each node costs a thread; beyond some hundreds of nodes use `hisparse_svc.fleet.aio.Fleet`.

    Args:
        nodes: `unix:/run/a.sock,10.0.0.7:7411`, `file:PATH`, `dns:HOST:PORT`, `kubernetes:NAMESPACE/SERVICE:PORT`,
            `kubernetes-nodes:NAMESPACE`; or a list of targets or members; or a directory of one's own.
        tls: Certificates for the nodes beyond this machine; by default those that the environment names.
        lengths: Lengths in tokens that each node's capacity answers in `fits`.
        policy: What makes one fitting node better than another: `most_left` (the default), `best_fit`, `most_free`,
            `least_requests` or `random`.
        choices: How many fitting nodes are compared.
        timeout_s: Time for an `admit`, beside its wait for room.
        attempt_s: Longest that one node may take to answer.
        ttl_s: Life of a lease without commit. Also the longest that a request whose node fell silent waits before
            another node is asked: a request never has two leases.
        stale_after_s: Age from which a view is used only where no fresher one fits.

    Raises:
        InvalidInput: Everything wrong with the arguments.

    Example:
        >>> import hisparse_svc
        >>> from hisparse_svc.fleet import Fleet
        >>> with hisparse_svc.Node.embedded(backing="none") as a, hisparse_svc.Node.embedded(backing="none") as b:
        ...     with Fleet([a.target, b.target]) as fleet, fleet.admit(4096, 256) as held:
        ...         held.node in (a.target, b.target), held.lease.pages
        (True, 68)
    """

    _listed: threading.Event

    def __init__(self, nodes: str | Iterable[str | Member] | Directory, **fields: Unpack[reading.Fields]) -> None:
        super().__init__(nodes, **fields)
        self._lock = threading.Lock()
        self._taking_back: set[threading.Thread] = set()
        self._listed = threading.Event()
        self._pinger = threading.Thread(target=self._ping_all, name="hisparse-fleet-ping", daemon=True)
        self._follower = Follower(self._settings.directory, self._take_members, self._not_followed)
        self._pinger.start()

    def admit(
        self,
        prompt_tokens: int = 0,
        max_new_tokens: int = 0,
        *,
        wait_s: float = 0.0,
        instead_of: HeldLease | None = None,
        **fields: Unpack[values.RequestFields],
    ) -> HeldLease:
        """Reserve all that a request needs on one node, or raise why none takes it. The fields are those of `Request`.

        Args:
            prompt_tokens: Tokens of the prompt.
            max_new_tokens: Most tokens it may produce; the whole length is reserved.
            generated_tokens: Tokens already produced elsewhere.
            pages: Host pages, instead of tokens.
            prefix_hashes: Content hashes of the prompt's full pages. A node that took them before is preferred.
            request_id: Your name for the request; never used for another one. By default a random one.
            tenant: Whose quota it counts against.
            priority: From -100 to 100; larger goes first among those that wait at one node.
            ttl_s: Life without commit; by default the fleet's.
            wait_s: How long to wait for room anywhere. No call is made meanwhile: the watches tell of room.
            instead_of: A lease on a node that fails. It is given up first, for certain: the node says so, or the
                lease's ttl is over. Its node is not asked again.

        Returns:
            The lease, as a context manager that releases it; `node` says where it is.

        Raises:
            NeverFitsAnywhere: At once.
            FleetBusy, FleetQuota, AllDraining, NoNodeAnswers, EmptyFleet: After `wait_s`.
            RetriesSpent: Another node might take it, but further attempts are used up.
            Unsettled: A node fell silent over this request, and what it holds is not known yet.
        """
        request = values.Request(prompt_tokens=prompt_tokens, max_new_tokens=max_new_tokens, **fields)
        self._listed.wait(self._patience_s())
        journey = self.journey(request, wait_s=wait_s, instead_of=instead_of)
        while True:
            self._check_open()
            match journey.step():
                case Rest(seconds):
                    self._closing.wait(seconds)
                case Settle() as settle:
                    if self._settle(settle, journey.ends_at):
                        journey.settled()
                case Ask(known):
                    held = self._ask(journey, known)
                    if held is not None:
                        return held

    def _ask(self, journey: Journey, known: Known) -> HeldLease | None:
        node = self._to_ask(journey, known)
        if node is None:
            return None
        admission = None
        with self._asking(journey, known, node):
            answer = node.client.send(journey.call, timeout_s=journey.attempt_s, tries=1)
            admission = journey.call.read(answer)
        if admission is None:  # the journey knows why
            return None
        journey.granted(known, admission)
        return HeldLease(node, admission, tuple(journey.attempts), journey.lease_ends_at)

    def _settle(self, settle: Settle, ends_at: float) -> bool:
        """Take back in this thread until it is safe or time is over, and leave the rest to a thread of its own."""
        try:
            while not settle.pace.is_safe(time.monotonic()) and time.monotonic() < ends_at:
                self._take_back_step(settle, ends_at - time.monotonic())
            return settle.pace.is_safe(time.monotonic())
        finally:
            thread = threading.Thread(
                target=self._take_back, args=(settle,), daemon=True, name="hisparse-fleet-release"
            )
            with self._lock:
                self._taking_back.add(thread)
            thread.start()

    def _take_back_step(self, settle: Settle, most_s: float) -> bool:
        """Make one step; whether there may be another."""
        word, seconds = settle.pace.next(time.monotonic())
        if word == "rest":
            self._closing.wait(min(seconds, most_s)) if not self._closing.is_set() else time.sleep(min(seconds, 0.05))
        elif word == "release":
            node, answered = self._nodes.get(settle.known), False
            with contextlib.suppress(HiSparseError):
                if node is not None:
                    node.client.send(settle.release, timeout_s=self._settings.attempt_s, tries=1)
                    answered = True
            settle.pace.released(answered, time.monotonic())
        return word != "done"

    def _take_back(self, settle: Settle) -> None:
        over: float | None = None
        while self._take_back_step(settle, math.inf):
            if self._closing.is_set():
                over = over or time.monotonic() + CLOSE_S
                if time.monotonic() > over:
                    break
        self._settled(settle)
        with self._lock:
            self._taking_back.discard(threading.current_thread())

    def rank(self, tokens: int = 0, *, pages: int = 0, prefix_hashes: Sequence[bytes] = ()) -> list[Ranked]:
        """Give every node in the order in which a request would ask, those that would not be asked at the end."""
        self._listed.wait(self._patience_s())
        return self._book.rank(tokens, pages, prefix_hashes)

    def nodes(self) -> list[NodeView]:
        """Give every node as this fleet sees it."""
        self._listed.wait(self._patience_s())
        return self._book.views()

    def client(self, name: str) -> Client:
        """Give the client of one node, by the node's name; the fleet closes it.

        Raises:
            UnknownNode: There is none of this name.
            Unreachable: Its client could not be made.
        """
        self._listed.wait(self._patience_s())
        return self._named(name).client

    def wait_until_seen(self, timeout_s: float | None = None) -> bool:
        """Wait until every node has said something or failed, for as long as a call may take; whether all have."""
        timeout_s = self._settings.timeout_s if timeout_s is None else timeout_s
        over = time.monotonic() + timeout_s
        if not self._listed.wait(timeout_s):
            return False
        while any(view.state == "unseen" for view in self._book.views()):
            if time.monotonic() > over:
                return False
            self._closing.wait(0.01)
        return True

    def _make(self, known: Known) -> Node:
        return Node(known, self._book, self._settings, self._closing, self._forget)

    def _forget(self, node: Node) -> None:
        self._nodes.pop(node.known, None)

    def _ping_all(self) -> None:
        with ThreadPoolExecutor(PINGERS, thread_name_prefix="hisparse-fleet-ping") as pingers:
            while not self._closing.wait(self._book.stale_after_s / 4):
                for known in self._book.due():
                    node = self._nodes.get(known)
                    if node is not None:
                        pingers.submit(node.ping)

    def close(self) -> None:
        """Close the connections; leases live on until they are released or end."""
        self._closing.set()
        self._follower.close()
        with self._lock:
            taking_back = list(self._taking_back)
        for thread in taking_back:
            thread.join()
        self._pinger.join()
        for node in list(self._nodes.values()):
            node.client.close()
        for node in list(self._nodes.values()):
            node.thread.join(timeout=CLOSE_S)

    def __enter__(self) -> Fleet:
        """Give the fleet itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self.close()
