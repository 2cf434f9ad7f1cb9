"""A fleet that its nodes write themselves: the HisparseNodes and Leases of a namespace, listed and then watched.

::

    nodes  ─ reflector, a thread ─┐
                                  ├─► queue ─► Roster ─► members, with hints     at once where one came or left,
    leases ─ reflector, a thread ─┘                                              else once in `HINT_S`

Needs the extra `kubernetes`; its account needs the Role `hisparse-node-reader` of deploy/kubernetes/components.
"""

from __future__ import annotations

import math
import threading
import time
from queue import Empty, Queue
from typing import TYPE_CHECKING

from hisparse_svc.errors import HiSparseError
from hisparse_svc.fleet.directories.roster import Roster
from hisparse_svc.kube import objects
from hisparse_svc.kube.api import Api, Rejected, unreadable
from hisparse_svc.kube.reflector import Changed, Reflector
from hisparse_svc.rpc.refusals import Unreachable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hisparse_svc.fleet.directories.member import Member
    from hisparse_svc.kube.reflector import Event

HINT_S, HINTS_PER_SECOND = 1.0, 1_000
"""Hints alone are told once in so long, and of so many nodes a second: thousands of them refresh all the time."""
MOST_EVENTS = 10_000
"""Taken in before the members are told again."""
LOOK_S = 0.25
"""Longest until `closing` is seen."""

NODES, LEASES = "HisparseNodes", "Leases"
LABELLED = f"{objects.LABEL}=true"

Word = tuple[str, "Event | HiSparseError"]


class KubernetesNodes:
    """The nodes that are published in a namespace.

    Args:
        namespace: Where.
        api: An API server of one's own; by default the pod's, else the kubeconfig's.

    Raises:
        InvalidInput: The official client is not installed, or no cluster is configured.
    """

    def __init__(self, namespace: str, *, api: Api | None = None) -> None:
        self.namespace = namespace
        self._api = api if api is not None else Api()
        self._roster = Roster()
        self._versions = {NODES: "", LEASES: ""}
        """How far each kind is taken in: where to go on after a failure."""

    def follow(self, closing: threading.Event) -> Iterator[tuple[Member, ...]]:
        """Give the members now, and after every change. Followed again after a failure it goes on from where it was.

        Raises:
            NotAllowed: The account may not list or watch them.
            Unreachable: The API server does not answer, or the cluster has no such kind.
        """
        words: Queue[Word] = Queue()
        ended = threading.Event()
        reflectors = {
            NODES: Reflector(self._api, objects.nodes_path(self.namespace), "", self._versions[NODES]),
            LEASES: Reflector(self._api, objects.leases_path(self.namespace), LABELLED, self._versions[LEASES]),
        }
        for kind, reflector in reflectors.items():
            name = f"hisparse-fleet-{kind.lower()}"
            threading.Thread(target=_read, args=(kind, reflector, ended, words), name=name, daemon=True).start()
        try:
            yield from self._rounds(closing, words)
        finally:
            ended.set()
            self._roster.lost(time.monotonic())
            for reflector in reflectors.values():
                reflector.wake()
            self._api.close()

    def _rounds(self, closing: threading.Event, words: Queue[Word]) -> Iterator[tuple[Member, ...]]:
        standing: set[str] = set()
        hints_at, stale_at, urgent, news = -math.inf, math.inf, False, False
        while not closing.is_set():
            known = len(standing) == len(self._versions)
            next_at = min(stale_at, hints_at if news else math.inf) if known else math.inf
            for kind, event in _waiting(words, next_at - time.monotonic()):
                if isinstance(event, HiSparseError):
                    raise self._error(kind, event)
                take = self._roster.take_node if kind == NODES else self._roster.take_lease
                moved = take(event, time.monotonic())
                self._versions[kind] = event.version
                urgent = urgent or moved or kind not in standing
                news = news or isinstance(event, Changed)
                standing.add(kind)
            now = time.monotonic()
            due = urgent or now >= stale_at or (news and now >= hints_at)
            if due and len(standing) == len(self._versions):
                members = self._roster.members(now)
                stale_at = self._roster.next_stale_at(now)
                hints_at = now + max(HINT_S, len(members) / HINTS_PER_SECOND)
                urgent = news = False
                yield members

    def _error(self, kind: str, failure: HiSparseError) -> HiSparseError:
        if not isinstance(failure, Rejected):
            return failure
        return unreadable(
            f"{kind} of the namespace {self.namespace}",
            failure,
            right="bind the Role hisparse-node-reader to this account there",
            missing="the cluster has no such kind: apply deploy/kubernetes/cluster",
        )

    def __str__(self) -> str:
        """Say where the members come from."""
        return f"the namespace {self.namespace}, in its HisparseNodes,"


def _read(kind: str, reflector: Reflector, ended: threading.Event, words: Queue[Word]) -> None:
    """Hand on what happens, and the failure that ends it."""
    try:
        for event in reflector.follow(ended):
            words.put((kind, event))
    except HiSparseError as failure:
        words.put((kind, failure))
    except Exception as failure:  # what no rule foresees must not end a thread without a word
        words.put((kind, Unreachable(f"{kind} cannot be followed: {failure!r}; look at this process's log")))


def _waiting(words: Queue[Word], longest_s: float) -> Iterator[Word]:
    """Give what has come, after a wait for the first of it; not all, where more comes than is taken in."""
    try:
        yield words.get(timeout=min(max(longest_s, 0.001), LOOK_S))
        for _ in range(MOST_EVENTS):
            yield words.get_nowait()
    except Empty:
        return
