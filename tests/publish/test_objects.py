"""What a node says, as its object has it: field by field, and back."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import hisparse_svc
import pytest
import yaml
from hisparse_svc.kube import objects
from hisparse_svc.rpc.values import Capacity, Fit, Pool
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import ROOT
from tests.publish.sample import IDENTITY, INFO, condition

NOW = datetime(2026, 11, 30, 5, 40, tzinfo=UTC)
SCHEMA = yaml.safe_load((ROOT / "deploy/kubernetes/cluster/hisparsenode.yaml").read_text(encoding="utf-8"))
FIELDS = SCHEMA["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]

parts = st.lists(st.integers(0, 1 << 40), min_size=6, max_size=6)


@st.composite
def capacities(draw: st.DrawFn) -> Capacity:
    pools = []
    for name in draw(st.lists(st.sampled_from(["host_pages", "seats", "indexer_tokens"]), unique=True, max_size=3)):
        for numa_node in draw(st.sampled_from([[None], [0], [0, 1]])):
            six = draw(parts)
            pools.append(Pool(name, sum(six), *six, numa_node))
    lengths = draw(st.lists(st.integers(1, 1 << 30), unique=True, max_size=5))
    grant = draw(st.integers(0, 1 << 40))
    return Capacity(
        epoch=draw(st.integers(0, 1 << 62)),
        sequence=draw(st.integers(0, 1 << 62)),
        observed_at=draw(st.datetimes(datetime(2026, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))),
        pools=tuple(pools),
        largest_grant_tokens=grant,
        max_request_tokens=grant + draw(st.integers(0, 1 << 40)),
        draining=draw(st.booleans()),
        largest_extent_pages=draw(st.integers(0, 1 << 40)),
        fits=tuple(
            Fit(tokens, draw(st.integers(0, 1 << 20)), draw(st.sampled_from(["", "seats"]))) for tokens in lengths
        ),
    )


@given(capacities())
def test_a_capacity_comes_back_as_it_was_but_for_its_numa_nodes(told: Capacity) -> None:
    state = objects.DRAINING if told.draining else objects.SERVING
    read = objects.read_capacity({**objects.capacity_fields(told), "state": state})
    names = dict.fromkeys(pool.name for pool in told.pools)
    assert read == replace(told, pools=tuple(replace(told.pool(name), numa_node=None) for name in names))
    for pool in read.pools:
        six = (pool.free, pool.reserved, pool.committed, pool.evictable, pool.scrubbing, pool.quarantined)
        assert sum(six) == pool.total


def test_every_field_of_a_real_node_is_one_of_the_schema() -> None:
    with hisparse_svc.Node.embedded(host_pool="1GiB", backing="none") as node, node.client.admit(4_096, 256):
        seen, info = node.client.get_capacity([8_192, 131_072]), node.client.server_info()
        body = objects.node_body(IDENTITY, info)
        status = objects.status_body(IDENTITY, replace(condition(), capacity=seen, info=info), NOW)["status"]
    assert set(body["spec"]) == set(FIELDS["spec"]["properties"])
    assert set(status) == set(FIELDS["status"]["properties"]) - {"reason"}
    items = {name: FIELDS["status"]["properties"][name]["items"]["properties"] for name in ("pools", "fits")}
    assert all(set(each) == set(items["pools"]) for each in status["pools"])
    assert all(set(each) == set(items["fits"]) for each in status["fits"])
    pages = next(pool for pool in status["pools"] if pool["name"] == "host_pages")
    assert (pages["total"], pages["free"], pages["reserved"]) == (310, 242, 68)
    assert [(fit["tokens"], fit["count"]) for fit in status["fits"]] == [(8_192, 1), (131_072, 0)]


@pytest.mark.parametrize("gone", ["epoch", "sequence", "observedAt", "pools", "largestGrantTokens", "maxRequestTokens"])
def test_a_status_that_lacks_something_is_no_hint(gone: str) -> None:
    fields = objects.capacity_fields(condition().capacity)  # type: ignore[arg-type]
    assert objects.read_capacity(fields) is not None
    del fields[gone]
    assert objects.read_capacity(fields) is None
    assert objects.read_capacity({**fields, gone: ["nonsense"]}) is None


def test_a_reason_is_cut_to_what_the_schema_takes() -> None:
    status = objects.status_body(IDENTITY, condition(reason="x" * 5_000), NOW)["status"]
    assert len(status["reason"]) <= FIELDS["status"]["properties"]["reason"]["maxLength"]


def test_a_time_is_written_in_utc_and_microseconds() -> None:
    assert objects.stamp(NOW) == "2026-11-30T05:40:00.000000Z"
    assert objects.stamp(NOW + timedelta(microseconds=7)) == "2026-11-30T05:40:00.000007Z"


def test_when_it_was_written_is_the_publishers_own_entry_of_that_part() -> None:
    def entry(manager: str, minute: int, **more: str) -> dict[str, str]:
        return {"manager": manager, "operation": "Apply", "time": f"2026-11-30T05:{minute}:00Z", **more}

    entries = [entry("kubectl", 10), entry("hisparse-publish", 20), entry("hisparse-publish", 30, subresource="status")]
    document = {"metadata": {"managedFields": entries}}
    assert objects.written_at(document) == datetime(2026, 11, 30, 5, 20, tzinfo=UTC)
    assert objects.written_at(document, "status") == datetime(2026, 11, 30, 5, 30, tzinfo=UTC)
    assert objects.written_at({"metadata": {}}) is None
    assert objects.written_at({"metadata": {"managedFields": [{"manager": "hisparse-publish"}]}}) is None


def test_a_lease_names_who_holds_it_until_it_is_released() -> None:
    held, released = (objects.lease_body(IDENTITY, 30, NOW, released=each)["spec"] for each in (False, True))
    assert held == {"holderIdentity": IDENTITY.pod_uid, "leaseDurationSeconds": 30, "renewTime": objects.stamp(NOW)}
    assert released == {"leaseDurationSeconds": 1, "renewTime": objects.stamp(NOW)}
    assert INFO.model == "glm-5.2"
