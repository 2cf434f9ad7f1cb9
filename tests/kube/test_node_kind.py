"""The kind HisparseNode before a real API server: what it takes, what it refuses and why, and what kubectl shows."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hisparse_svc.kube import objects

from tests.kube.manifests import changed
from tests.publish.sample import INFO, condition

pytest.importorskip("kubernetes.client", reason="no Kubernetes client: run make setup")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Run
    from tests.kube.cluster import Cluster

Document = dict[str, Any]

IDENTITY = objects.Identity("", "decode-0", "10.0.0.7:7411")


@pytest.fixture(scope="module", autouse=True)
def kind(kube: Cluster) -> Iterator[None]:
    from tests.kube.directory import installed  # noqa: PLC0415 - needs the client

    with installed(kube):
        yield


def body(**fields: int) -> Document:
    """A node with its status, as a publisher writes it."""
    document = objects.node_body(IDENTITY, INFO)
    del document["metadata"]["namespace"]
    seen = condition(**fields)
    document["status"] = objects.status_body(IDENTITY, seen, datetime.now(UTC))["status"]
    return document


@pytest.fixture
def apply(kube: Cluster, namespace: str) -> Callable[..., Run]:
    """Writes an object, and its status, as the publisher does: under strict validation."""

    def write(document: Document) -> Run:
        done = kube.apply({key: value for key, value in document.items() if key != "status"}, namespace=namespace)
        if done.code or "status" not in document:
            return done
        flags = ("--server-side", "--subresource=status", "--validate=strict", "--force-conflicts", "--filename=-")
        return kube.kubectl("apply", *flags, stdin=json.dumps(document), namespace=namespace)

    return write


def test_the_schema_is_structural_and_what_a_publisher_writes_is_taken(
    kube: Cluster, namespace: str, apply: Callable[..., Run]
) -> None:
    told = kube.kubectl("get", "crd", "hisparsenodes.hisparse.io", "--output=json")
    conditions = {each["type"]: each["status"] for each in json.loads(told.out)["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert "NonStructuralSchema" not in conditions
    done = apply(body())
    assert (done.code, done.err) == (0, "")
    stored = json.loads(kube.kubectl("get", "hsn", "decode-0", "--output=json", namespace=namespace).out)
    assert stored["status"] == body()["status"] | {"refreshedAt": stored["status"]["refreshedAt"]}


def test_kubectl_shows_a_node_in_one_line_and_its_age(kube: Cluster, namespace: str, apply: Callable[..., Run]) -> None:
    document = body(seats=37)
    refreshed = datetime.now(UTC) - timedelta(minutes=7)
    document["status"] |= {
        "refreshedAt": objects.stamp(refreshed),
        "reason": "an operator drains it",
        "fits": [{"tokens": tokens, "count": count} for tokens, count in ((8_192, 21), (32_768, 5), (131_072, 1))],
    }
    assert apply(document).code == 0
    head, line = kube.kubectl("get", "hisparsenodes", namespace=namespace).out.splitlines()
    columns = ["NAME", "MODEL", "STATE", "SEATS FREE", "LARGEST GRANT", "FIT 8K", "FIT 32K", "FIT 128K", "REFRESHED"]
    assert re.split("  +", head.strip()) == columns
    assert line.split()[:-1] == ["decode-0", "glm-5.2", "Serving", "37", "60000", "21", "5", "1"]
    assert re.fullmatch("7m[0-9]*s?", line.split()[-1]), "a node that is stale looks so"
    wide = kube.kubectl("get", "hsn", "--output=wide", namespace=namespace).out
    assert "10.0.0.7:7411" in wide
    assert "an operator drains it" in wide


def test_a_node_that_has_only_come_is_shown_too(kube: Cluster, namespace: str, apply: Callable[..., Run]) -> None:
    document = body()
    document["status"] = {"state": "Recovering", "refreshedAt": objects.stamp(datetime.now(UTC)), "reason": "making"}
    assert apply(document).code == 0
    assert kube.kubectl("get", "hsn", namespace=namespace).out.splitlines()[1].split()[:3] == [
        "decode-0",
        "glm-5.2",
        "Recovering",
    ]


ADDRESS = "must be HOST:PORT, as 10.0.0.7:7411 or [fd00::7]:7411"
PORT = "the port must be from 1 to 65535"
NOWHERE = "each router would dial itself there"
WRONG: dict[str, tuple[str, Any, str]] = {
    "no address": ("spec/address", ..., "spec.address: Required value"),
    "an empty address": ("spec/address", "", ADDRESS),
    "no port": ("spec/address", "10.0.0.7", ADDRESS),
    "a port that is a word": ("spec/address", "10.0.0.7:grpc", ADDRESS),
    "port 0": ("spec/address", "10.0.0.7:0", PORT),
    "port 65536": ("spec/address", "10.0.0.7:65536", PORT),
    "where a service listens": ("spec/address", "0.0.0.0:7411", NOWHERE),
    "where a service listens, IPv6": ("spec/address", "[::]:7411", NOWHERE),
    "a socket": ("spec/address", "unix:/run/hisparse.sock", ADDRESS),
    "a bare IPv6 address": ("spec/address", "fd00::7:7411", ADDRESS),
    "two addresses": ("spec/address", "10.0.0.7:7411,10.0.0.8:7411", ADDRESS),
    "no model": ("spec/model", ..., "spec.model: Required value"),
    "an empty model": ("spec/model", "", "spec.model"),
    "a backing that is none": ("spec/backing", "disk", 'Unsupported value: "disk"'),
    "a page of nothing": ("spec/pageTokens", 0, "should be greater than or equal to 1"),
    "a field that is none": ("spec/adress", "10.0.0.7:7411", "field not declared in schema"),
    "no state": ("status/state", ..., "status.state: Required value"),
    "a state that is none": ("status/state", "Busy", 'Unsupported value: "Busy"'),
    "no time": ("status/refreshedAt", ..., "status.refreshedAt: Required value"),
    "a time that is none": ("status/refreshedAt", "yesterday", "date-time"),
    "a grant beyond the longest request": (
        "status/largestGrantTokens",
        64_001,
        "must not be more than maxRequestTokens",
    ),
    "a negative grant": ("status/largestGrantTokens", -1, "should be greater than or equal to 0"),
    "a count that is text": ("status/sequence", "five", "expected numeric"),
    "serving without pools": ("status/pools", ..., "a node that is Serving must say what it has"),
    "serving without fits": ("status/fits", ..., "a node that is Serving must say what it has"),
    "serving without an epoch": ("status/epoch", ..., "a node that is Serving must say what it has"),
    "more free than there is": ("status/pools/0/free", 1_001, "free must not be more than total"),
    "parts that do not add up": ("status/pools/1/free", 39, "must add up to total"),
    "a part that is missing": ("status/pools/1/quarantined", ..., "status.pools[1].quarantined: Required value"),
    "a negative part": ("status/pools/1/scrubbing", -1, "should be greater than or equal to 0"),
    "a pool said twice": ("status/pools/1/name", "host_pages", "a pool must be named once"),
    "a pool without a name": ("status/pools/1/name", "", "status.pools[1].name"),
    "too many pools": ("status/pools", [{"name": f"p{n}"} for n in range(17)], "must have at most 16 items"),
    "a length of nothing": ("status/fits/0/tokens", 0, "should be greater than or equal to 1"),
    "a length said twice": (
        "status/fits",
        [{"tokens": 8_192, "count": 1}, {"tokens": 8_192, "count": 2}],
        "a length must be named once",
    ),
    "a reason without end": ("status/reason", "x" * 1_025, "may not be more than 1024 bytes"),
    "a part that is none": ("status/pools/0/used", 1, "field not declared in schema"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_each_wrong_object_is_refused_with_its_reason(apply: Callable[..., Run], mistake: str) -> None:
    path, value, reason = WRONG[mistake]
    done = apply(changed(body(), path, value))
    assert done.code != 0
    assert reason in done.err, done.err


@pytest.mark.parametrize(
    ("change", "taken"),
    [
        ({"sequence": 6}, True),
        ({"sequence": 5}, True),
        ({"sequence": 4}, False),
        ({"epoch": 8, "sequence": 0}, True),
        ({"epoch": 6, "sequence": 900}, False),
        ({"epoch": 6, "sequence": 0, "startedAt": "2026-11-30T06:00:00.000000Z"}, True),
        ({"state": "Unreachable"}, True),
    ],
)
def test_within_one_run_of_a_service_nothing_older_is_taken(
    apply: Callable[..., Run], change: dict[str, Any], taken: bool
) -> None:
    assert apply(body()).code == 0
    document = body()
    document["status"] |= change
    done = apply(document)
    assert (done.code == 0) is taken, done.err
    if not taken:
        assert "epoch and sequence must not go back within one run of the service" in done.err


def test_who_it_is_does_not_change_with_what_it_has(kube: Cluster, namespace: str, apply: Callable[..., Run]) -> None:
    """The status is a subresource: a writer of one half cannot write the other."""
    assert apply(body()).code == 0
    moved = body(pages=900)
    moved["spec"]["address"] = "10.9.9.9:1"
    flags = ("--server-side", "--subresource=status", "--force-conflicts", "--filename=-")
    assert kube.kubectl("apply", *flags, stdin=json.dumps(moved), namespace=namespace).code == 0
    stored = json.loads(kube.kubectl("get", "hsn", "decode-0", "--output=json", namespace=namespace).out)
    assert stored["spec"]["address"] == "10.0.0.7:7411"
    assert stored["status"]["pools"][0]["free"] == 900
