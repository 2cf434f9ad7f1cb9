"""Why a fleet did not place a request.

Each is also the exception that one node would have raised, so that code written for one node works for many.

::

    Unreachable ─── EmptyFleet, NoNodeAnswers        Overloaded ─── RetriesSpent
    NeverFits ───── NeverFitsAnywhere                NoAnswer ───── Unsettled
    PoolBusy ────── FleetBusy                        InvalidInput ─ UnknownNode
    Draining ────── AllDraining
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.rpc.refusals import Draining, NeverFits, NoAnswer, Overloaded, PoolBusy, QuotaExceeded, Unreachable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SHOWN = 4
"""Nodes that a message names; the rest is a count."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One node that was asked and did not take the request."""

    node: str
    reason: str
    """A refusal's word, such as `POOL_BUSY`; `NO_ANSWER` or `UNREACHABLE` where there was none."""
    text: str
    """The whole of it, for people."""


class EmptyFleet(Unreachable):
    """The directory names no node."""


class NoNodeAnswers(Unreachable):
    """No node that could hold the request answers.

    Attributes:
        failures: What became of each node's watch, by its name.
    """

    def __init__(self, message: str, failures: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.failures = dict(failures or {})


class UnknownNode(InvalidInput):
    """The fleet has no node of this name."""

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        names = list(known)
        near = difflib.get_close_matches(name, names, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"name one of {', '.join(names[:SHOWN]) or 'its nodes'}"
        super().__init__([Problem("node", f'"{name}"', "is no node of this fleet", remedy)])
        self._given = (name, names)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with what it was made of."""
        return type(self), self._given


class _Tried:
    """What the refusals share."""

    attempts: Sequence[Attempt] = ()
    """The nodes that were asked, in order."""


class NeverFitsAnywhere(_Tried, NeverFits):
    """Too long for every node of the fleet, however long one waits."""

    remedy = "shorten the request, or add a larger node"


class FleetBusy(_Tried, PoolBusy):
    """No node that could hold it has room now."""

    remedy = "try again, or allow a longer wait: `wait_s`"


class FleetQuota(_Tried, QuotaExceeded):
    """Every node that was asked says that the tenant holds as much as it may."""


class AllDraining(_Tried, Draining):
    """Every node that could hold it and answers is draining."""

    remedy = "add nodes, or `hisparse-svc drain --resume` on one"


class RetriesSpent(_Tried, Overloaded):
    """Another node might take it, but this router has made as many further attempts as it may."""

    remedy = "send less, or allow a longer wait: `wait_s`"


class Unsettled(_Tried, NoAnswer):
    """What one node made of the request is unknown; it is being taken back there."""


def several(names: Iterable[str], between: str = ", ") -> str:
    """Name a few, and count the rest."""
    given = list(names)
    more = len(given) - SHOWN
    return between.join(given[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def with_attempts(error: Any, attempts: Sequence[Attempt]) -> Any:
    """Give the error with the nodes that were asked."""
    error.attempts = tuple(attempts)
    return error
