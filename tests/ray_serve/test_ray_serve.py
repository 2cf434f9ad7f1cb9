"""Real Ray Serve: requests go where room is, and no lease outlives its stream."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hisparse_svc import InvalidInput
from hisparse_svc.integrations.ray import NodeReplica
from hisparse_svc.integrations.ray.sizes import request_of
from hisparse_svc.rpc.values import Request

from tests.conftest import environment
from tests.serve.conftest import start

WITHOUT_RAY = importlib.util.find_spec("ray") is None
needs_ray = pytest.mark.skipif(WITHOUT_RAY, reason="no Ray Serve: make test-ray brings it")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one scene shows; Ray alone takes half a minute to start and stop."""
    folder = tmp_path_factory.mktemp("ray")
    plain = ("--backing", "none", "--http", "off", "--host-pool", "16GiB", "--kv-bytes", "64GiB")
    owning = ("--backing", "memory", "--http", "off", "--host-pool", "256MiB", "--reclaim-window", "1")
    sidecars = [start(folder / "plain.sock", *plain), start(folder / "owning.sock", *owning)]
    try:
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("scene.py")), *(node.target for node in sidecars)],
            env={**environment(), "RAY_USAGE_STATS_ENABLED": "0"},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    finally:
        for node in sidecars:
            node.close()
    assert done.returncode == 0, done.stderr[-4_000:]
    said = [line for line in done.stdout.splitlines() if line.startswith("{")]  # Ray's own words are beside it
    told: dict[str, Any] = json.loads(said[-1])
    return told


@needs_ray
def test_requests_that_fill_a_node_each_go_to_different_replicas(seen: dict[str, Any]) -> None:
    assert seen["nodes_of_three_that_fit_one_each"] == 3


@needs_ray
def test_a_refusal_reaches_the_caller_as_what_the_node_said(seen: dict[str, Any]) -> None:
    assert (seen["busy_when_all_are_full"], seen["never_fits"]) == (True, True)


@needs_ray
def test_a_caller_that_goes_away_leaves_no_lease_and_its_room_is_found(seen: dict[str, Any]) -> None:
    assert (seen["left_after_cancel"], seen["goes_where_room_came"]) == ([], True)


@needs_ray
def test_a_replica_killed_in_mid_stream_leaves_no_lease_and_its_successor_is_used(seen: dict[str, Any]) -> None:
    assert seen["killed_stream"] != "went on"
    assert seen["new_replica_is_another_node"]
    assert (seen["left_on_new_replica"], seen["left_on_others"]) == ([], [[], []])


@needs_ray
def test_a_router_that_cannot_read_a_request_still_sends_it(seen: dict[str, Any]) -> None:
    assert seen["answered_past_a_mistake"]


@needs_ray
def test_a_sidecar_keeps_a_stream_s_lease_and_ends_that_of_a_killed_replica_by_its_ttl(seen: dict[str, Any]) -> None:
    assert seen["sidecar_renewed"]
    assert seen["sidecar_killed_stream"] != "went on"
    assert seen["sidecar_left"] == ["quarantined"]


@needs_ray
def test_requests_of_one_prefix_go_to_the_node_that_took_it(seen: dict[str, Any]) -> None:
    assert seen["goes_where_its_prefix_is"] == [True, True, False, False, True]
    assert seen["no_hash"], "what is none is the caller's error"


@needs_ray
def test_an_attached_sidecar_ends_the_leases_of_a_killed_replica_at_once(seen: dict[str, Any]) -> None:
    assert seen["attached_never_expires"], "the session keeps it"
    assert (seen["attached_left"], seen["attached_gone"]) == (["quarantined"], [])
    assert seen["attached_ended_s"] < 1.0
    assert seen["attached_gone_s"] < 3.0, "the reclaim window of a second"
    assert seen["attached_again"], "the next replica attaches in its place"


@needs_ray
def test_a_router_that_is_configured_wrong_says_so_before_it_is_deployed(seen: dict[str, Any]) -> None:
    assert seen["wrong_settings"] == [["policy"], ["attempt_s"], ["wait_s"], ["wait_s", "attempt_s"]]


def test_a_streams_lease_outlives_a_restart_of_the_node_beside_it(tmp_path: Path) -> None:
    flags = ("--backing", "none", "--http", "off", "--host-pool", "1GiB")
    replica, nodes = NodeReplica(), [start(tmp_path / "node.sock", *flags)]
    replica.use_node(nodes[0].target)

    async def stream() -> list[str]:
        async with replica.lease(1_000, lease_ttl_s=6.0) as held:
            epoch = held.lease.epoch
            nodes[0].process.kill()
            nodes[0].process.wait()
            nodes.append(await asyncio.to_thread(start, tmp_path / "node.sock", *flags))
            await asyncio.sleep(3.0)
            assert held.lease.epoch > epoch
            return [str(lease.state) for lease in nodes[1].client().list_leases()]

    try:
        assert asyncio.run(stream()) == ["committed"]
        assert nodes[1].client().list_leases() == []
    finally:
        for node in nodes:
            node.close()


def test_a_replica_without_a_node_says_what_to_call() -> None:
    for asked in (NodeReplica().record_replica_metadata, NodeReplica().lease):
        with pytest.raises(InvalidInput, match="call start_node, attach_node or use_node in __init__"):
            asked()


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        ([{"prompt_tokens": 4, "max_new_tokens": 2, "text": "…"}], {}),
        ([], {"prompt_tokens": 4, "max_new_tokens": 2}),
        (["…"], {"request": {"prompt_tokens": 4, "max_new_tokens": 2}}),
        ([Request(prompt_tokens=4, max_new_tokens=2)], {}),
    ],
)
def test_what_a_request_asks_for_is_read_from_its_arguments(arguments: list[Any], keywords: dict[str, Any]) -> None:
    assert request_of(arguments, keywords) == Request(prompt_tokens=4, max_new_tokens=2)
    assert request_of(["text"], {"stream": True}) == Request()


def test_the_prefix_is_read_where_it_is_one() -> None:
    hashes = [bytes([page]) * 32 for page in range(2)]
    asked = {"prompt_tokens": 128, "prefix_hashes": hashes}
    assert request_of([asked], {}) == Request(prompt_tokens=128, prefix_hashes=tuple(hashes))
    for no_hashes in ("ab", ["ab"], [1], None, 7):
        assert request_of([], asked | {"prefix_hashes": no_hashes}) == Request(prompt_tokens=128), no_hashes
