"""What HisparseNodes and Leases come to: who is a member, in which order, and who is stale by this process's clock."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hisparse_svc.fleet.directories.roster import Roster
from hisparse_svc.kube import objects
from hisparse_svc.kube.reflector import Changed, Listed, Stands
from hypothesis import given
from hypothesis import strategies as st

from tests.publish.sample import condition

SERVER = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
"""The API server's clock; the nodes' clocks are wrong by hours."""


def document(kind: str, name: str, body: dict[str, Any], written: datetime | None = None) -> dict[str, Any]:
    subresource = "status" if kind == "node" else ""
    entry = {"manager": objects.MANAGER, "subresource": subresource, "time": (written or SERVER).isoformat()}
    return {"metadata": {"name": name, "managedFields": [entry]}, **body}


def node(name: str, state: str = "Serving", *, written: datetime | None = None, **fields: int) -> dict[str, Any]:
    identity = objects.Identity("serving", name, f"{name}.serving:7411")
    seen = condition(state, **fields)
    assert seen.info is not None
    body = {"spec": objects.node_body(identity, seen.info)["spec"]}
    body["status"] = objects.status_body(identity, seen, written or SERVER)["status"]
    return document("node", name, body, written)


def lease(name: str, renewals: int = 0, *, written: datetime | None = None, released: bool = False) -> dict[str, Any]:
    """Its times are those of a node whose clock is two years behind."""
    identity = objects.Identity("serving", name, "")
    wrong = SERVER - timedelta(days=730) + timedelta(seconds=10 * renewals)
    return document(
        "lease", name, {"spec": objects.lease_body(identity, 30, wrong, released=released)["spec"]}, written
    )


def roster(*names: str, now: float = 1_000.0) -> Roster:
    made = Roster()
    made.take_node(Listed("5", [node(name) for name in names], SERVER), now)
    made.take_lease(Listed("5", [lease(name) for name in names], SERVER), now)
    made.take_lease(Stands("5"), now)
    return made


def stale(made: Roster, now: float) -> dict[str, bool]:
    return {member.name: member.hint.stale for member in made.members(now) if member.hint is not None}


def test_a_lease_counts_for_its_duration_from_when_it_was_seen_renewed() -> None:
    made = roster("a", "b")
    assert stale(made, 1_029.9) == {"a": False, "b": False}
    assert made.next_stale_at(1_000.0) == 1_030.0
    made.take_lease(Changed("6", lease("a", 1), gone=False), 1_010.0)
    assert stale(made, 1_030.0) == {"a": False, "b": True}
    assert made.next_stale_at(1_030.0) == 1_040.0
    assert [member.name for member in made.members(1_030.0)] == ["a", "b"], "the stale one is still a member, and last"
    assert stale(made, 1_040.0) == {"a": True, "b": True}
    made.take_lease(Changed("7", lease("b", 1), gone=False), 1_041.0)
    assert [member.name for member in made.members(1_041.0)] == ["b", "a"]


def test_a_change_of_something_else_is_no_renewal() -> None:
    made = roster("a")
    labelled = lease("a")
    labelled["metadata"]["labels"] = {"rack": "7"}
    made.take_lease(Changed("6", labelled, gone=False), 1_020.0)
    assert stale(made, 1_030.0) == {"a": True}


@given(ages=st.lists(st.integers(0, 100), min_size=1, max_size=8))
def test_at_first_sight_a_lease_is_as_old_as_the_api_server_says_whatever_the_nodes_clock(ages: list[int]) -> None:
    made = Roster()
    names = [f"n{place}" for place in range(len(ages))]
    written = [SERVER - timedelta(seconds=age) for age in ages]
    made.take_node(
        Listed("5", [node(name, written=at) for name, at in zip(names, written, strict=True)], SERVER), 1_000.0
    )
    made.take_lease(
        Listed("5", [lease(name, written=at) for name, at in zip(names, written, strict=True)], SERVER), 1_000.0
    )
    made.take_lease(Stands("5"), 1_000.0)
    assert stale(made, 1_000.0) == {name: age >= 30 for name, age in zip(names, ages, strict=True)}
    for member in made.members(1_000.0):
        assert member.hint is not None
        assert member.hint.heard_at == 1_000.0 - ages[names.index(member.name)]


@given(
    events=st.lists(st.tuples(st.floats(0, 40), st.sampled_from("abc"), st.booleans()), max_size=40),
    looks=st.lists(st.floats(0, 60), max_size=10),
)
def test_nobody_becomes_stale_before_the_time_that_is_told_and_somebody_does_then(
    events: list[tuple[float, str, bool]], looks: list[float]
) -> None:
    made, now = roster("a", "b", "c"), 1_000.0
    for place, (rest, name, renews) in enumerate(events):
        now += rest
        made.take_lease(Changed(str(place), lease(name, place + 1 if renews else 0), gone=False), now)
        before, at = stale(made, now), made.next_stale_at(now)
        for later in looks:
            if now + later < at:
                assert stale(made, now + later) == before
        if math.isfinite(at):
            assert sum(stale(made, at).values()) > sum(before.values())
        else:
            assert all(before.values())


def test_time_in_which_nothing_could_be_heard_does_not_count() -> None:
    made = roster("a", "b")
    made.lost(1_020.0)
    assert stale(made, 5_000.0) == {"a": False, "b": False}, "what was known then stays"
    assert made.next_stale_at(5_000.0) == math.inf
    made.take_lease(Changed("8", lease("b", 1), gone=False), 5_000.0)  # came while nobody listened
    made.take_lease(Stands("8"), 5_000.0)
    assert stale(made, 5_009.9) == {"a": False, "b": False}
    assert stale(made, 5_010.0) == {"a": True, "b": False}, "20 s before, and 10 s after"
    made.lost(5_010.0)
    made.lost(5_011.0)
    made.take_lease(Listed("9", [lease("a"), lease("b", 1)], SERVER + timedelta(hours=9)), 6_000.0)
    made.take_lease(Stands("9"), 6_000.0)
    assert stale(made, 6_000.0) == {"a": True, "b": False}, "a second list does not make the same Lease new"


@pytest.mark.parametrize("why", ["no lease", "released", "deleted", "no duration"])
def test_a_node_that_nobody_vouches_for_is_stale_at_once(why: str) -> None:
    made = roster("a")
    if why == "no lease":
        made.take_node(Changed("6", node("a"), gone=False), 1_001.0)
        made.take_lease(Listed("6", [], SERVER), 1_001.0)
    elif why == "released":
        made.take_lease(Changed("6", lease("a", 1, released=True), gone=False), 1_001.0)
    elif why == "deleted":
        made.take_lease(Changed("6", lease("a"), gone=True), 1_001.0)
    else:
        broken = lease("a", 1)
        broken["spec"]["leaseDurationSeconds"] = None
        made.take_lease(Changed("6", broken, gone=False), 1_001.0)
    assert stale(made, 1_001.0) == {"a": True}


def test_members_are_those_that_have_not_left_the_roomiest_first() -> None:
    made = roster("a")
    documents = [
        node("tight", grant=100),
        node("roomy", grant=60_000),
        node("draining", "Draining", grant=60_000),
        node("stopped", "Stopped"),
        node("unheard"),
    ]
    broken = node("broken")
    broken["spec"]["address"] = "nowhere"
    young: dict[str, Any] = {"metadata": {"name": "young"}, "spec": {"address": "[fd00::7]:7411"}}
    made.take_node(Listed("6", [*documents, broken, young], SERVER), 1_000.0)
    names = ["tight", "roomy", "draining", "stopped", "broken", "young"]
    made.take_lease(Listed("6", [lease(name) for name in names], SERVER), 1_000.0)
    members = made.members(1_001.0)
    assert [member.name for member in members] == ["roomy", "tight", "draining", "young", "unheard"]
    hints = {member.name: member.hint for member in members}
    assert hints["young"] is not None
    assert (hints["young"].state, hints["young"].capacity) == ("unknown", None)
    assert members[3].target == "[fd00::7]:7411"
    made.take_node(Changed("7", node("roomy", "Stopped"), gone=False), 1_002.0)
    made.take_node(Changed("8", node("tight"), gone=True), 1_002.0)
    made.take_lease(Changed("8", lease("tight"), gone=True), 1_002.0)
    assert [member.name for member in made.members(1_002.0)] == ["draining", "young", "unheard"]


@pytest.mark.parametrize("how", ["deleted", "not listed"])
def test_a_node_whose_object_alone_is_gone_stays_for_as_long_as_somebody_vouches_for_it(how: str) -> None:
    made = roster("a", "b")
    if how == "deleted":
        assert made.take_node(Changed("6", node("a"), gone=True), 1_001.0)
        made.take_node(Changed("7", node("b"), gone=True), 1_001.0)
    else:  # the kind was deleted, and is there again without objects
        made.lost(1_001.0)
        made.take_node(Listed("9", [], SERVER), 1_020.0)
        made.take_lease(Stands("9"), 1_001.0)
    made.take_lease(Changed("8", lease("a", 1), gone=False), 1_010.0)
    assert stale(made, 1_029.9) == {"a": False, "b": False}
    assert made.next_stale_at(1_010.0) == 1_030.0
    assert stale(made, 1_030.0) == {"a": False}, "nobody vouches for b, and it has no object"
    made.take_node(Changed("9", node("a", "Draining"), gone=False), 1_031.0)
    assert [member.hint.state for member in made.members(1_031.0) if member.hint] == ["draining"]
    made.take_node(Changed("10", node("a", "Stopped"), gone=False), 1_032.0)
    made.take_node(Changed("11", node("a", "Stopped"), gone=True), 1_032.0)
    assert made.members(1_032.0) == (), "it has said that it leaves"


def test_a_node_whose_object_and_lease_are_gone_has_left() -> None:
    made = roster("a", "b")
    made.take_node(Changed("6", node("a"), gone=True), 1_001.0)
    assert made.take_lease(Changed("7", lease("a"), gone=True), 1_001.0), "told at once"
    assert stale(made, 1_001.0) == {"b": False}


def test_of_two_objects_at_one_address_the_one_that_is_vouched_for_is_the_member() -> None:
    made = roster("decode-0")
    again = node("renamed")
    again["spec"]["address"] = node("decode-0")["spec"]["address"]
    made.take_node(Changed("6", again, gone=False), 1_010.0)
    assert stale(made, 1_010.0) == {"decode-0": False}, "nobody vouches for the new one yet"
    made.take_lease(Changed("7", lease("renamed"), gone=False), 1_010.0)
    assert stale(made, 1_029.0) == {"decode-0": False}
    assert stale(made, 1_030.0) == {"renamed": False}


def test_hints_make_no_other_member() -> None:
    made = roster("a")
    before = made.members(1_000.0)
    made.take_node(Changed("6", node("a", pages=3), gone=False), 1_005.0)
    after = made.members(1_005.0)
    assert before == after
    assert before[0].hint != after[0].hint
