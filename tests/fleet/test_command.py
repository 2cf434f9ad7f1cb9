"""`hisparse-svc fleet` and `replay` against several nodes."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from hisparse_svc import _core
from hisparse_svc.fleet import aio
from hisparse_svc.replay import desks, live
from hisparse_svc.replay.options import Options
from hisparse_svc.replay.samples import load_trace

from tests.conftest import run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.serve.conftest import Served


def test_it_shows_every_node_and_what_fits_where(serve: Callable[..., Served]) -> None:
    a, b = serve(name="a"), serve(name="b")
    a.client().admit(10_000, ttl_s=60)
    b.client().drain()
    target = f"a={a.target},b={b.target},c=unix:{a.socket}.none"
    told = run("fleet", "--target", target, "--length", "8192", "--length", "64", "--json")
    assert told.code == 0
    nodes = {node["name"]: node for node in told.document["nodes"]}
    assert {name: node["state"] for name, node in nodes.items()} == {"a": "live", "b": "draining", "c": "silent"}
    assert nodes["a"]["free"] == {"host_pages": 153, "seats": 3, "indexer_tokens": 9_792, "request_slots": 1_023}
    assert [(fit["tokens"], fit["count"]) for fit in nodes["a"]["fits"]] == [(8_192, 1), (64, 3)]
    assert [fit["reason"] for fit in nodes["a"]["fits"]] == ["POOL_BUSY", "POOL_BUSY"]
    assert [fit["reason"] for fit in nodes["b"]["fits"]] == ["DRAINING", "DRAINING"], "and not its binding pool"
    assert 0 <= nodes["a"]["age_ms"] < 5_000
    assert "there is no socket" in nodes["c"]["failure"]
    assert told.document["fits"] == [
        {"tokens": 8_192, "count": 1, "nodes": 1},
        {"tokens": 64, "count": 3, "nodes": 1},
    ]
    drawn = run("fleet", "--target", target)
    assert drawn.code == 0
    lines = [line.split() for line in drawn.out.splitlines()]
    assert [line[0] for line in lines] == ["node", "a", "b", "c", "all"]
    assert lines[1][1:] == ["live", lines[1][2], "s", "3", "153", "9,792", "1", "0", "0"]
    assert lines[4] == ["all", "1", "0", "0"]


def test_a_fleet_of_nobody_is_unreachable(tmp_path: Path) -> None:
    told = run("fleet", "--target", f"unix:{tmp_path}/a.sock,unix:{tmp_path}/b.sock")
    assert told.code == 3
    assert told.errors[0].startswith("none of 2 nodes answers: unix:")
    (tmp_path / "nodes").write_text("")
    told = run("fleet", "--target", f"file:{tmp_path}/nodes")
    remedy = "look whether it is named rightly, and whether nodes are there"
    assert (told.code, told.errors) == (3, [f"the fleet has no node: the file {tmp_path}/nodes names none; {remedy}"])
    told = run("fleet", "--target", f"file:{tmp_path}/absent")
    assert (told.code, len(told.errors)) == (3, 1)
    assert told.errors[0].startswith(f'the fleet has no node: nodes is "{tmp_path}/absent": must be a file that exists')
    told = run("fleet", "--target", "dns:no.such.host.invalid:7411")
    assert (told.code, len(told.errors)) == (3, 1)
    assert told.errors[0].startswith("the fleet has no node: the name no.such.host.invalid has no address")
    (tmp_path / "nodes").write_text("\n".join(f"junk line {place}" for place in range(1_000)))
    told = run("fleet", "--target", f"file:{tmp_path}/nodes")
    assert (told.code, len(told.errors)) == (3, 1)
    assert told.errors[0].count("junk line") == 4, "a few are shown"
    assert told.errors[0].endswith(" and 996 more")
    assert run("fleet", "--target", "nonsense").code == 2


def test_wrong_flags_are_named_together() -> None:
    told = run("fleet", "--target", "nonsense", "--length", "0", "--length", "x", "--timeout", "0", "--json")
    assert told.code == 2
    fields = [problem["field"] for problem in told.document["problems"]]
    assert fields == ["--length", "--length", "--timeout", "nodes"]
    told = run("fleet", "--target", "unix:/run/a.sock", "--length", str(1 << 70))
    remedy = f"give a number from 1 to {_core.MAX_CONTEXT_TOKENS}"
    assert (told.code, told.errors) == (2, [f"--length is {1 << 70}: must be a possible length; {remedy}"])


@pytest.mark.parametrize("command", ["capacity", "watch", "top", "fleet"])
def test_more_lengths_than_a_node_answers_are_refused_with_the_bound(command: str) -> None:
    most = _core.MAX_LENGTHS_ASKED
    flags = [flag for length in range(1, most + 2) for flag in ("--length", str(length))]
    told = run(command, "--target", "unix:/run/a.sock", *flags)
    assert told.code == 2
    assert told.errors == [f"--length is {most + 1} lengths: must be at most {most}; ask about fewer"]


def test_a_trace_plays_on_several_nodes(serve: Callable[..., Served]) -> None:
    nodes = [serve("--host-pool", "4GiB", name=name) for name in "ab"]
    target = ",".join(node.target for node in nodes)
    told = run("replay", "sample", "--limit", "40", "--target", target, "--json")
    assert told.code == 0, told.err
    played = told.document
    assert played["admitted"] + played["refused_busy"] + played["refused_never_fits"] == 40
    assert (played["overcommit"], played["unbalanced"], played["node"]["nodes"]) == (0, 0, 2)
    assert played["total_pages"] == 2 * nodes[0].client().get_capacity().pool("host_pages").total
    assert all(node.client().list_leases() == [] for node in nodes)


def test_a_trace_plays_on_without_a_node_that_dies(serve: Callable[..., Served]) -> None:
    dying, other = (serve("--host-pool", "4GiB", name=name) for name in "ab")
    watching = dying.client()

    def kill_when_in_use() -> None:
        while not watching.list_leases():
            time.sleep(0.01)
        dying.process.kill()

    killing = threading.Thread(target=kill_when_in_use)
    killing.start()

    async def play() -> dict[str, Any]:
        async with aio.Fleet([dying.target, other.target], timeout_s=1.0, attempt_s=0.5) as nodes:
            await nodes.wait_until_seen()
            return await live.play(desks.ManyNodes(nodes), load_trace("sample", 60), Options(speed=30))

    played = asyncio.run(play())["outcome"]
    killing.join()
    assert played["lost"] + played["unsettled"] >= 1
    ends = ("admitted", "refused_busy", "refused_never_fits", "unsettled")
    assert sum(played[end] for end in ends) == 60
    assert (played["overcommit"], played["unbalanced"]) == (0, 0)
    assert other.client().list_leases() == []


def test_what_is_too_long_for_the_nodes_that_answer_does_not_end_a_replay(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    node = serve()
    told = run("replay", "sample", "--limit", "20", "--json", "--target", f"{node.target},unix:{tmp_path}/b.sock")
    assert told.code == 0, told.err
    assert told.document["refused_never_fits"] > 0
