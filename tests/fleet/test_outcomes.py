"""What each way an attempt can fail means for the request, without a server."""

from __future__ import annotations

import inspect
import pickle
from typing import TYPE_CHECKING

import pytest
from hisparse_svc import errors, fleet
from hisparse_svc.fleet import aio
from hisparse_svc.fleet.book import Book
from hisparse_svc.fleet.directories import Member
from hisparse_svc.fleet.journey import outcome, reason
from hisparse_svc.rpc import refusals

if TYPE_CHECKING:
    from hisparse_svc.errors import HiSparseError


def unsent() -> refusals.Unreachable:
    failure = refusals.Unreachable("failed to connect")
    failure.unsent = True
    return failure


@pytest.mark.parametrize(
    ("failure", "word", "named"),
    [
        (refusals.NoAnswer("silent"), "unknown", "NO_ANSWER"),
        (refusals.Unreachable("the connection broke"), "unknown", "UNREACHABLE"),
        (unsent(), "unsent", "UNREACHABLE"),
        (refusals.TurnedAway("not let in"), "unsent", "UNREACHABLE"),
        (refusals.ServerFault("a panic"), "unknown", "FAILED"),
        (refusals.Refused("no word for it"), "unknown", "FAILED"),
        (refusals.Refused("a new word", reason="TOO_WARM"), "unready", "TOO_WARM"),
        (refusals.PoolBusy("full", reason="POOL_BUSY"), "full", "POOL_BUSY"),
        (refusals.QuotaExceeded("full", reason="QUOTA"), "full", "QUOTA"),
        (refusals.NeverFits("long", reason="NEVER_FITS"), "never_fits", "NEVER_FITS"),
        (refusals.Draining("no", reason="DRAINING"), "unready", "DRAINING"),
        (refusals.Recovering("no", reason="RECOVERING"), "unready", "RECOVERING"),
        (refusals.Overloaded("no", reason="OVERLOADED"), "unready", "OVERLOADED"),
        (refusals.DeadlineExceeded("decided nothing", reason="DEADLINE"), "unready", "DEADLINE"),
        (refusals.NotAllowed("no", reason="WRONG_ROLE"), "failed", "WRONG_ROLE"),
        (refusals.Unsupported("another version"), "failed", "UNSUPPORTED"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_only_what_may_have_arrived_is_settled(failure: HiSparseError, word: str, named: str) -> None:
    found = outcome(failure)
    assert found is not None
    assert (found[0], reason(failure)) == (word, named)


def test_a_nodes_own_delay_is_kept() -> None:
    assert outcome(refusals.PoolBusy("full", reason="POOL_BUSY", retry_after_s=0.3)) == ("full", 0.3)


@pytest.mark.parametrize(
    "failure",
    [errors.InvalidInput([errors.Problem("pages", "x", "r", "m")]), refusals.RequestIdReused("r", reason="X")],
)
def test_what_no_other_node_mends_ends_the_request(failure: HiSparseError) -> None:
    assert outcome(failure) is None


def test_members_that_move_leave_and_join() -> None:
    book = Book(policy=None, choices=None, stale_after_s=None)
    a, b = Member("a", "10.0.0.1:1"), Member("b", "10.0.0.2:1")
    joined, left = book.take_members([a, b])
    assert ([known.member for known in joined], left) == ([a, b], [])
    assert book.take_members([a, b]) == ([], [])
    moved = Member("a", "10.0.0.9:1")
    joined, left = book.take_members([moved])
    assert ([known.member for known in joined], [known.member for known in left]) == ([moved], [a, b])
    assert [view.target for view in book.views()] == ["10.0.0.9:1"]
    assert book.known(left[0].number) is None


def test_errors_cross_a_process_border_whole() -> None:
    unknown = pickle.loads(pickle.dumps(fleet.UnknownNode("decode-O", ["decode-0"])))  # noqa: S301 - made here
    assert "did you mean decode-0?" in str(unknown)
    busy = fleet.FleetBusy("no room", reason="POOL_BUSY", retry_after_s=1.0)
    busy.attempts = (fleet.Attempt("a", "POOL_BUSY", "full"),)
    again = pickle.loads(pickle.dumps(busy))  # noqa: S301 - made here
    assert (type(again), again.attempts, again.retry_after_s) == (fleet.FleetBusy, busy.attempts, 1.0)


def test_the_two_fleets_have_the_same_methods_with_the_same_parameters() -> None:
    def surface(kind: type) -> dict[str, list[str]]:
        members = {name: member for name, member in vars(kind).items() if not name.startswith("_")}
        return {
            name: list(inspect.signature(member).parameters) if callable(member) else []
            for name, member in members.items()
        }

    assert surface(fleet.Fleet) == surface(aio.Fleet)
    assert surface(fleet.HeldLease) == surface(aio.HeldLease)
    assert inspect.signature(fleet.Fleet) == inspect.signature(aio.Fleet)
