"""Real Ray Serve: requests go where room is, and no lease outlives its stream."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hisparse_svc.integrations.ray.sizes import request_of
from hisparse_svc.rpc.values import Request

from tests.serve.conftest import environment

WITHOUT_RAY = importlib.util.find_spec("ray") is None
needs_ray = pytest.mark.skipif(WITHOUT_RAY, reason="no Ray Serve: make test-ray brings it")

SIDECAR = """
import subprocess, sys
node = [sys.executable, "-m", "hisparse_svc", "serve", "--backing", "none", "--http", "off", "--socket", sys.argv[2]]
node += ["--host-pool", "16GiB", "--kv-bytes", "64GiB"]
process = subprocess.Popen(node, stdout=subprocess.PIPE, text=True)
try:
    assert process.stdout.readline().startswith("ready")
    subprocess.run([sys.executable, sys.argv[1], "unix:" + sys.argv[2]], check=True)
finally:
    process.terminate()
    process.wait()
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one scene shows; Ray alone takes half a minute to start and stop."""
    scene, socket = Path(__file__).with_name("scene.py"), tmp_path_factory.mktemp("ray") / "node.sock"
    command = [sys.executable, "-c", SIDECAR, str(scene), str(socket)]
    variables = {**environment(), "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=280, check=False)
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
