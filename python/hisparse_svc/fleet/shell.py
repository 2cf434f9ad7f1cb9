"""What both fleets do without waiting for anything: who is a member, whose client is whose, who still holds what.

::

    Shell ─┬─ sync.Fleet    nodes with threads             OnNode ─┬─ sync_node.HeldLease
           └─ aio.Fleet     nodes with tasks                       └─ aio_node.HeldLease
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, Unpack

from hisparse_svc.errors import HiSparseError
from hisparse_svc.fleet import settings as reading
from hisparse_svc.fleet.journey import Journey, Left
from hisparse_svc.rpc.refusals import CLOSED, Unreachable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hisparse_svc.fleet.book import Known
    from hisparse_svc.fleet.directories import Directory, Member
    from hisparse_svc.fleet.errors import Attempt
    from hisparse_svc.fleet.journey import Leaving, Settle
    from hisparse_svc.rpc import values


class Node(Protocol):
    """A node of either fleet."""

    known: Known

    def start(self) -> None:
        """Begin to watch it."""

    def leave(self) -> None:
        """It is no member any more."""

    def hold(self, more: int) -> None:
        """Count leases in callers' hands, and calls for one, in or out."""


Watched = TypeVar("Watched", bound=Node)


class Flag(Protocol):
    """An event, of threads or of a loop."""

    def set(self) -> None:
        """Let those go on that wait for it."""


class Shell(Generic[Watched]):
    """The nodes of a fleet, and the settings and the book behind them."""

    _listed: Flag
    """The directory has spoken, or cannot."""

    def __init__(self, nodes: str | Iterable[str | Member] | Directory, **fields: Unpack[reading.Fields]) -> None:
        self._settings, self._book = reading.read(nodes, **fields)
        self._book.directory = str(self._settings.directory)
        self._listed_by = time.monotonic() + self._settings.timeout_s
        self._nodes: dict[Known, Watched] = {}
        self._closing = threading.Event()

    def journey(self, request: values.Request, *, wait_s: float = 0.0, instead_of: Leaving | None = None) -> Journey:
        """Begin a request's way without making a call: for a router that sends the request itself.

        Args:
            request: What it needs.
            wait_s: How long its steps wait for room anywhere.
            instead_of: A lease that is given up first.
        """
        self._check_open()
        return Journey(self._book, self._settings, request, wait_s=wait_s, instead_of=instead_of)

    def check(self) -> None:
        """Go on only where at least one node has said something.

        Raises:
            EmptyFleet: The directory names no node.
            NoNodeAnswers: None has.
        """
        self._book.check()

    @property
    def failure(self) -> HiSparseError | None:
        """Why the directory cannot be followed at the moment; the nodes are those that it named last."""
        return self._book.failure

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise Unreachable(CLOSED)

    def _patience_s(self) -> float:
        """How long the directory is still waited for: as a call may take, from the fleet's beginning on."""
        return max(self._listed_by - time.monotonic(), 0.0)

    def _make(self, known: Known) -> Watched:
        raise NotImplementedError

    def _take_members(self, members: tuple[Member, ...]) -> None:
        """The directory says who is in the fleet."""
        joined, left = self._book.take_members(members)
        for known in joined:
            try:
                node = self._make(known)
            except HiSparseError as failure:
                self._book.broken(known, failure)
                continue
            self._nodes[known] = node
            node.start()
        for known in left:
            node_left = self._nodes.get(known)
            if node_left is not None:
                node_left.leave()
        self._listed.set()

    def _not_followed(self, failure: HiSparseError) -> None:
        """The directory cannot say it."""
        self._book.failure = failure
        self._listed.set()

    def _named(self, name: str) -> Watched:
        """Give a node by its name.

        Raises:
            UnknownNode: There is none.
            Unreachable: Its client could not be made.
        """
        known = self._book.named(name)
        if known not in self._nodes:
            raise Unreachable(known.failure or CLOSED)
        return self._nodes[known]

    def _to_ask(self, journey: Journey, known: Known) -> Watched | None:
        """Give the node that a journey's call goes to, held for it; `None` where it has left just now."""
        node = self._nodes.get(known)
        if node is None:
            journey.abandoned()
        else:
            node.hold(1)
        return node

    @contextlib.contextmanager
    def _asking(self, journey: Journey, known: Known, node: Watched) -> Iterator[None]:
        """Tell the journey of a call that fails, or whose caller gave up, and let the node go.

        Raises:
            HiSparseError: Why the call failed, where no other node could answer otherwise.
        """
        try:
            yield
        except HiSparseError as failure:
            try:
                journey.failed(known, failure)
            finally:
                if not journey.settling:  # else when that is done
                    node.hold(-1)
        except BaseException:
            node.hold(-1)
            journey.abandoned()
            raise

    def _settled(self, settle: Settle) -> None:
        """Nothing is held there any more, or nobody goes on looking."""
        self._book.settle(settle.request, settle.known.number, done=True)
        node = self._nodes.get(settle.known)
        if node is not None:
            node.hold(-1)


class OnNode:
    """What a lease in hand knows of its node.

    Attributes:
        node: Name of the node that it is on: send the request there.
        target: Where that node's service is.
        attempts: The nodes that were asked before and did not take it.
    """

    lease: values.Lease
    """As the node said last."""

    def _place(self, node: Node, attempts: tuple[Attempt, ...], ends_at: float) -> None:
        self.node, self.target = node.known.member.name, node.known.member.target
        self.attempts = attempts
        self._node: Any = node
        self._ends_at, self._released = ends_at, False

    def leaving(self) -> Left:
        """Give it up for another one: what `Fleet.admit` needs of it. Its node is let go when it is settled."""
        self._released = True
        return Left(self._node.known, self.lease, self._ends_at)

    def __repr__(self) -> str:
        """Say which lease it is, and where."""
        held = f"lease={self.lease.id!r}, request_id={self.lease.request_id!r}, tokens={self.lease.tokens}"
        return f"HeldLease(node={self.node!r}, {held}, state={self.lease.state.value!r})"

    def _let_go(self) -> None:
        if not self._released:
            self._released = True
            self._node.hold(-1)
