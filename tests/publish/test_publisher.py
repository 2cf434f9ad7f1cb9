"""The publisher against an API server that answers as the test says: what is written, what each failure comes to."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hisparse_svc.kube.api import Away, Rejected, Untrusted
from hisparse_svc.kube.objects import DRAINING, RECOVERING, UNREACHABLE, Condition, stamp
from hisparse_svc.kube.publisher import Publisher
from hisparse_svc.kube.telling import Teller

from tests.publish.sample import IDENTITY, INFO, Node, Server, another_run, condition

OBJECT, STATUS, LEASE = "hisparsenodes/decode-0", "hisparsenodes/decode-0/status", "leases/decode-0"


class Scene:
    """One publisher, its node, its server, and time as the test says it."""

    def __init__(self, **settings: Any) -> None:
        self.node, self.server, self.lines = Node(), Server(), list[str]()
        self.teller = Teller(self.lines.append, as_json=False)
        self.publisher = Publisher(self.server, IDENTITY, self.node, self.teller, chance=lambda: 0.5, **settings)

    def at(self, now: float) -> list[str]:
        """Let it do all that is due; what it wrote."""
        while self.publisher.step(now) <= now:
            pass
        return self.server.take()


def test_who_it_is_what_it_has_and_the_lease_are_written_at_first_and_then_as_they_are_due() -> None:
    scene = Scene()
    assert scene.at(100.0) == [OBJECT, STATUS, LEASE]
    assert scene.at(101.0) == []
    assert scene.at(109.0) == [LEASE], "a third of 30 s, less a tenth by chance"
    assert scene.at(120.0) == [STATUS, LEASE], "20 s after the first"
    scene.node.seen = condition(pages=900)
    assert scene.at(121.0) == [STATUS]
    scene.node.seen = condition(DRAINING, "an operator drains it", pages=900)
    assert scene.at(121.1) == [STATUS]
    scene.node.seen = another_run(scene.node.seen)
    assert scene.at(130.0) == [OBJECT, STATUS, LEASE], "the version is who it is"
    assert scene.lines == ["the HisparseNode is written", "the Lease is written"]


def test_both_objects_belong_to_the_pod_and_say_what_they_should() -> None:
    scene = Scene()
    scene.publisher.step(100.0)
    (_, node), (_, status), (_, lease) = scene.server.writes
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "decode-0", "uid": IDENTITY.pod_uid}
    assert all(body["metadata"]["ownerReferences"] == [owner] for body in (node, status, lease))
    assert node["spec"] == {
        "address": "10.0.0.7:7411",
        "model": "glm-5.2",
        "backing": "memory",
        "pageTokens": 64,
        "version": "0.1.0",
    }
    assert "status" not in node
    assert "spec" not in status, "or the right to write the status would have to be more than that"
    assert (status["status"]["state"], status["status"]["startedAt"]) == ("Serving", "2026-11-30T05:00:00.000000Z")
    assert lease["metadata"]["labels"] == {"hisparse.io/node": "true"}
    assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseDurationSeconds"]) == (IDENTITY.pod_uid, 30)


def test_outside_of_a_pod_nothing_owns_them() -> None:
    scene = Scene()
    scene.publisher._identity = replace(IDENTITY, pod_uid="")
    scene.publisher.step(100.0)
    assert all("ownerReferences" not in body["metadata"] for _, body in scene.server.writes)
    assert scene.server.writes[-1][1]["spec"]["holderIdentity"] == "decode-0"


def test_nobody_vouches_for_a_node_that_does_not_answer() -> None:
    scene = Scene()
    scene.at(0.0)
    scene.node.seen = condition(UNREACHABLE, "nothing answers")
    assert scene.at(20.0) == [STATUS]
    assert scene.at(60.0) == [STATUS]
    scene.node.seen = condition()
    assert scene.at(60.5) == [STATUS, LEASE], "at once"


def test_a_node_that_was_never_heard_is_not_written() -> None:
    scene = Scene()
    scene.node.seen = Condition(UNREACHABLE, "nothing answers", None, None)
    assert scene.at(0.0) == []
    scene.publisher.goodbye()
    assert scene.server.take() == []
    scene.node.seen = Condition(RECOVERING, "its pool is being made", None, INFO)
    assert scene.at(1.0) == [OBJECT, STATUS, LEASE]


def test_a_node_that_does_not_answer_is_told_with_its_reason_each_minute_and_when_it_is_back() -> None:
    scene = Scene()
    scene.node.seen = Condition(UNREACHABLE, "there is no socket at /run/h.sock", None, None)
    scene.at(0.0)
    scene.at(4.9)
    assert scene.lines == [], "it may only be starting"
    for now in range(5, 124):
        scene.at(float(now))
    assert scene.lines == 2 * ["warning: the node does not answer: there is no socket at /run/h.sock"]
    scene.node.seen = Condition(RECOVERING, "its pool is being made", None, INFO)
    scene.at(124.0)
    assert "the node answers again, and is Recovering: its pool is being made" in scene.lines
    scene.node.seen = condition()
    scene.at(125.0)
    scene.lines.clear()
    scene.node.seen = condition(UNREACHABLE, "nothing answers")
    scene.at(126.0)
    assert scene.lines == ["warning: the node does not answer: nothing answers"], "it has answered before: at once"
    scene.node.seen = condition()
    scene.at(127.0)
    assert scene.lines[1:] == ["the node answers again, and is Serving"]


FAILURES = {
    "away": (Away("the Kubernetes API at https://10.96.0.1 does not answer: refused; look"), "NetworkPolicy"),
    "401": (Rejected(401, "Unauthorized", "Unauthorized"), "its token is not taken"),
    "403": (Rejected(403, "Forbidden", "may not patch"), "bind the Role hisparse-node"),
    "404": (Rejected(404, "NotFound", "the server could not find the requested resource"), "deploy/kubernetes/cluster"),
    "409": (Rejected(409, "Conflict", "being deleted"), "tried again"),
    "422": (Rejected(422, "Invalid", "free must not be more than total"), "of this version"),
    "policy": (
        Rejected(
            422,
            "Invalid",
            "ValidatingAdmissionPolicy 'hisparse-node-writes-itself' with binding 'hisparse-node-writes-itself' denied "
            "request: a publisher's object is owned by its own pod",
        ),
        "set POD_NAME, POD_UID and the token by the pod's own",
    ),
    "untrusted": (Untrusted("the Kubernetes API at https://10.96.0.1 cannot be trusted: self-signed; x"), "ca.crt"),
    "429": (Rejected(429, "TooManyRequests", "slow down", 7.0), "a longer --refresh"),
    "500": (Rejected(500, "InternalError", "etcd"), "look at the API server"),
    "503": (Rejected(503, "ServiceUnavailable", "starting", 3.0), "look at the API server"),
}


@pytest.mark.parametrize("word", FAILURES)
@pytest.mark.parametrize("end", [OBJECT, STATUS, LEASE])
def test_each_failure_is_told_once_with_a_remedy_counted_and_tried_again_after_a_rest(word: str, end: str) -> None:
    scene = Scene()
    failure, remedy = FAILURES[word]
    scene.server.answers[end] = failure
    tried = scene.at(0.0)
    assert tried.count(end) == 1
    assert {OBJECT, LEASE} <= set(tried), "one kind's failure does not hold up the other"
    kind = "Lease" if end == LEASE else "HisparseNode"
    (line,) = [each for each in scene.lines if each.startswith("warning: ")]
    assert line.startswith(f"warning: the {kind} cannot be written: ")
    assert remedy in line
    times = [now for now in range(1, 121) if end in scene.at(float(now))]
    rests = [after - before for before, after in zip([0, *times], times, strict=False)]
    asked = getattr(failure, "retry_after_s", None) or 0.0
    assert all(rest >= asked for rest in rests)
    longest = 10 if end == LEASE else 60
    assert 3 <= len(times) <= 30, times
    assert max(rests) <= max(longest, asked * 1.2) + 1
    warnings = [each for each in scene.lines if each.startswith("warning: ")]
    assert len(warnings) == 1, "the same is told again after a minute of the real clock alone"
    what = "lease" if end == LEASE else "node"
    assert scene.teller.counts[what, {"policy": "422", "untrusted": "away"}.get(word, word)] == 1 + len(times)
    scene.server.answers.clear()
    assert any(end in scene.at(float(now)) for now in range(121, 200))
    assert f"the {kind} is written again, after {1 + len(times)} failures" in scene.lines


def test_an_object_that_somebody_deleted_is_made_again() -> None:
    scene = Scene()
    scene.at(0.0)
    scene.node.seen = condition(pages=500)
    scene.server.answers[STATUS] = Rejected(404, "NotFound", 'hisparsenodes.hisparse.io "decode-0" not found')
    assert scene.at(1.0) == [STATUS]
    scene.server.answers.clear()
    assert scene.at(2.0) == [OBJECT, STATUS]


def test_an_address_that_somebody_else_wrote_is_told_and_written_back() -> None:
    scene = Scene()
    scene.at(0.0)
    scene.server.addresses = ["10.0.0.9:7411"]
    scene.node.seen = condition(pages=500)
    assert scene.at(6.0) == [STATUS, OBJECT]
    (line,) = [line for line in scene.lines if "another publisher" in line]
    assert line.startswith(
        "warning: another publisher, or a hand, wrote 10.0.0.9:7411 into this HisparseNode; give each"
    )
    scene.node.seen = condition(pages=100)
    assert scene.at(12.0)[0] == STATUS, "and the object is left alone once it is right"


def published(address: str, age_s: float, state: str = "Serving") -> dict[str, Any]:
    refreshed_at = stamp(datetime.now(UTC) - timedelta(seconds=age_s))
    return {"spec": {"address": address}, "status": {"state": state, "refreshedAt": refreshed_at}}


def test_a_publisher_that_runs_under_the_same_name_is_named_before_the_first_write() -> None:
    scene = Scene()
    scene.server.there = published("10.0.0.9:7411", 4)
    assert scene.at(0.0) == [OBJECT, STATUS, LEASE]
    text = "warning: 10.0.0.9:7411 was published as this HisparseNode 4 s ago; if its publisher still runs, "
    assert scene.lines[0] == f"{text}give each node a name of its own: two that share one take turns"
    scene.at(60.0)
    assert sum("was published" in line for line in scene.lines) == 1


@pytest.mark.parametrize(
    "there",
    [
        published("10.0.0.7:7411", 4),
        published("10.0.0.9:7411", 4, "Stopped"),
        published("10.0.0.9:7411", 3_600),
        {"spec": {"address": "10.0.0.9:7411"}},
        {"spec": {"address": "10.0.0.9:7411"}, "status": {"state": "Serving", "refreshedAt": "nonsense"}},
        {},
        None,
    ],
)
def test_what_a_publisher_of_before_left_there_is_no_other_one(there: dict[str, Any] | None) -> None:
    scene = Scene()
    scene.server.there = there
    assert scene.at(0.0) == [OBJECT, STATUS, LEASE]
    assert scene.lines == ["the HisparseNode is written", "the Lease is written"]


def test_who_stops_leaves_what_another_publisher_has_to_that_one() -> None:
    scene = Scene()
    scene.at(0.0)
    scene.server.take()
    scene.server.there = published("10.0.0.9:7411", 1)
    scene.publisher.goodbye()
    assert scene.server.take() == []
    assert scene.lines[-1] == "this HisparseNode and its Lease are left to 10.0.0.9:7411"
    scene.server.there = published("10.0.0.9:7411", 1, "Stopped")
    scene.publisher.goodbye()
    assert scene.server.take() == [STATUS, LEASE]


def test_who_stops_says_so_and_lets_its_lease_go() -> None:
    scene = Scene()
    scene.at(0.0)
    stopping = threading.Event()
    stopping.set()
    scene.publisher.run(stopping)
    (_, status), (_, lease) = scene.server.writes
    assert status["status"]["state"] == "Stopped"
    assert status["status"]["pools"], "what it had stays to be seen"
    assert "holderIdentity" not in lease["spec"]
    assert lease["spec"]["leaseDurationSeconds"] == 1


def test_who_cannot_say_goodbye_stops_all_the_same() -> None:
    scene = Scene()
    scene.at(0.0)
    scene.server.answers["decode-0"] = scene.server.answers["status"] = FAILURES["away"][0]
    scene.publisher.goodbye()
    assert scene.server.take() == [STATUS, LEASE]


def test_a_node_that_wakes_the_publisher_is_written_without_waiting() -> None:
    wake, stopping, wrote = threading.Event(), threading.Event(), threading.Event()
    scene = Scene(wake=wake)
    apply = scene.server.apply

    def noted(path: str, body: dict[str, Any], **more: Any) -> dict[str, Any]:
        if body.get("status", {}).get("state") == "Draining":
            wrote.set()
        return apply(path, body, **more)

    scene.server.apply = noted  # type: ignore[method-assign]
    thread = threading.Thread(target=scene.publisher.run, args=(stopping,))
    thread.start()
    scene.node.seen = condition(DRAINING)
    wake.set()
    assert wrote.wait(0.9), "a look comes every second anyhow"
    stopping.set()
    wake.set()
    thread.join(timeout=5)
    assert not thread.is_alive()


def test_lines_are_documents_where_that_is_asked_for_and_counts_are_prometheus_text() -> None:
    lines: list[str] = []
    teller = Teller(lines.append, as_json=True)
    teller.failed("lease", FAILURES["403"][0], 1.25, 1)  # type: ignore[arg-type]
    teller.wrote("lease", 3)
    documents = [json.loads(line) for line in lines]
    assert [(each["level"], each["event"], each["object"]) for each in documents] == [
        ("warning", "failed", "lease"),
        ("info", "written", "lease"),
    ]
    assert (documents[0]["code"], documents[0]["rest_s"]) == ("403", 1.2)
    text = teller.metrics()
    assert 'hisparse_publish_writes_total{object="lease",result="403"} 1\n' in text
    assert 'hisparse_publish_writes_total{object="lease",result="done"} 1\n' in text
    assert 'hisparse_publish_written_seconds{object="lease"} 1' in text
