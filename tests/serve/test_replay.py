"""Traces: read strictly, played in process and against a server alike, nothing promised twice."""

from __future__ import annotations

import json
import math
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hisparse_svc import InvalidInput, Lease, LeaseState, Unreachable, _core
from hisparse_svc.replay.audit import Audit, count_extents
from hisparse_svc.replay.document import in_process
from hisparse_svc.replay.options import Options
from hisparse_svc.replay.samples import load_trace
from hisparse_svc.rpc.values import Capacity, Extent, Pool

from tests.conftest import environment, run, shared

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.serve.conftest import Served

GOOD = '{"timestamp": 5, "input_length": 700, "output_length": 3, "hash_ids": [0, 7]}'
CONTRACT = {
    "requests",
    "admitted",
    "waited",
    "refused_never_fits",
    "refused_busy",
    "peak_pages",
    "total_pages",
    "overcommit",
    "prefix_hit_pages",
    "wait_ms",
    "new_extents_per_request",
    "shared_extents_per_request",
    "device_only",
}


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("{broken", "line 2"),
        ('{"timestamp": 4, "input_length": 1, "output_length": 1}', "line 2.timestamp"),
        ('{"timestamp": 6, "input_length": -3, "output_length": 1}', "line 2.input_length"),
        ('{"timestamp": 6, "input_length": 3}', "line 2.output_length"),
        ("[]", "line 2"),
    ],
    ids=["broken", "out of order", "negative", "incomplete", "no object"],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, line: str, field: str) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(f"{GOOD}\n{line}\n{GOOD}\n", encoding="utf-8")
    told = run("replay", str(trace), "--json")
    assert told.code == 2
    assert told.document["problems"][0]["field"] == field


def test_a_trace_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    assert run("replay", str(tmp_path / "none.jsonl")).code == 2
    (tmp_path / "raw").write_bytes(b"\xff\xfe\x00")
    told = run("replay", str(tmp_path / "raw"))
    assert (told.code, "UTF-8" in told.err) == (2, True)


def test_flags_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    for flags in (["--speed", "10"], ["--speed", "-1"], ["--max-wait", "-1"], ["--prefill-tps", "0"], ["--limit", "0"]):
        assert run("replay", "sample", *flags).code == 2, flags
    told = run("replay", "sample", "--target", f"unix:{tmp_path}/s", "--host-pool", "1GiB")
    assert told.errors == ["--host-pool is given: is the service's own with --target; leave it out"]


def test_the_document_has_the_names_of_the_contract_and_is_saved_as_printed(tmp_path: Path) -> None:
    out, plot = tmp_path / "replay.json", tmp_path / "replay.svg"
    told = run("replay", "sample", "--json", "--out", str(out), "--plot", str(plot))
    assert told.code == 0, told.err
    document = told.document
    assert document.keys() >= CONTRACT
    assert document == json.loads(out.read_text(encoding="utf-8"))
    assert (document["requests"], document["overcommit"]) == (200, 0)
    assert document["admitted"] > document["device_only"]["admitted"]
    assert plot.read_text(encoding="utf-8").lstrip().startswith("<?xml")


def test_the_whole_trace_is_taken_far_better_than_by_the_device_alone() -> None:
    document = in_process(load_trace(shared("traces") / "conversation_trace.jsonl"))
    assert (document["requests"], document["overcommit"]) == (12_031, 0)
    assert document["device_only"]["overcommit"] == 0
    assert document["admitted"] > 10_860, "a model without prefix reuse admits as many"
    assert document["device_only"]["admitted"] < 7_400


def test_a_server_played_in_order_gives_what_the_core_gives_without_a_prefix_cache(
    serve: Callable[..., Served],
) -> None:
    """A server shares no prefix until an engine publishes it, so the trace goes without its block names."""
    trace = [
        json.dumps({"timestamp": at * 150, "input_length": 500 + at * 977 % 9_000, "output_length": at * 31 % 400})
        for at in range(150)
    ]
    played = _core.Trace.parse("\n".join(trace))
    flags = {"host_pool": "1GiB", "kv_bytes": "2GiB"}
    node = serve("--kv-bytes", "2GiB")
    here = in_process(played, arguments=flags)
    there = live(node, played)
    for name in ("admitted", "waited", "refused_busy", "refused_never_fits", "peak_pages", "total_pages", "wait_ms"):
        assert there[name] == here[name], name
    assert (there["overcommit"], there["unbalanced"]) == (0, 0)
    assert there["refused_busy"] > 0, "the trace must be too much for this node, or it shows nothing"
    assert node.client().list_leases() == []


def live(node: Served, trace: Any, speed: float = math.inf) -> dict[str, Any]:
    import asyncio  # noqa: PLC0415

    from hisparse_svc import aio  # noqa: PLC0415
    from hisparse_svc.replay.desks import OneNode  # noqa: PLC0415
    from hisparse_svc.replay.live import play  # noqa: PLC0415

    async def drive() -> dict[str, Any]:
        async with aio.Client(node.target) as client:
            return await play(OneNode(client), trace, Options(speed=speed))

    outcome: dict[str, Any] = asyncio.run(drive())["outcome"]
    return outcome


def test_real_time_goes_as_fast_as_told_and_gives_everything_back(serve: Callable[..., Served]) -> None:
    node = serve("--host-pool", "16GiB")
    trace = load_trace("sample", 60)
    outcome = live(node, trace, speed=30)
    ended = outcome["admitted"] + outcome["refused_busy"] + outcome["refused_never_fits"]
    assert ended == 60
    assert (outcome["overcommit"], outcome["unbalanced"]) == (0, 0)
    assert node.client().list_leases() == []


@pytest.mark.parametrize("speed", [math.inf, 5.0])
def test_a_server_that_dies_ends_the_replay_with_what_to_do(serve: Callable[..., Served], speed: float) -> None:
    node = serve("--host-pool", "160GiB")
    trace = load_trace("sample")
    threading.Timer(1.0 if speed == 5.0 else 0.1, node.process.kill).start()
    with pytest.raises(Unreachable):
        live(node, trace, speed)


def test_replay_against_a_server_prints_the_same_document(node: Served) -> None:
    told = node.cli("replay", "sample", "--limit", "40", "--json")
    assert told.code == 0, told.err
    assert told.document.keys() >= CONTRACT
    assert told.document["node"]["backing"] == "none"


def lease(*extents: tuple[int, int], shared_pages: int = 0) -> Lease:
    pages = sum(count for _, count in extents)
    runs = tuple(Extent(*extent) for extent in extents)
    return Lease("l", "r", LeaseState.RESERVED, 1, pages, shared_pages, pages * 64, "default", None, runs)


def test_the_audit_sees_a_page_handed_out_twice_and_one_beyond_the_pool() -> None:
    audit = Audit(100)
    audit.granted(lease((0, 10)))
    assert (audit.overcommit, audit.used) == (0, 10)
    audit.granted(lease((0, 4), (20, 2), shared_pages=4))
    assert (audit.overcommit, audit.used) == (0, 12), "a shared page is no promise of its own"
    audit.granted(lease((8, 4)))
    assert audit.overcommit == 2
    audit.granted(lease((98, 5)))
    assert audit.overcommit == 2 + 3


def test_the_audit_counts_holders_down_again() -> None:
    audit = Audit(100)
    first, second = lease((0, 10)), lease((0, 4), (20, 2), shared_pages=4)
    audit.granted(first)
    audit.granted(second)
    audit.released(first)
    assert (audit.used, audit.peak) == (6, 12)
    audit.released(second)
    audit.granted(lease((0, 100)))
    assert (audit.overcommit, audit.used) == (0, 100)


def test_the_audit_sees_a_pool_that_does_not_add_up() -> None:
    audit = Audit(1)
    sound = Pool("seats", total=3, free=1, reserved=1, committed=1, evictable=0, scrubbing=0, quarantined=0)
    broken = Pool("seats", total=4, free=1, reserved=1, committed=1, evictable=0, scrubbing=0, quarantined=0)
    for pools, unbalanced in (((sound,), 0), ((sound, broken), 1)):
        audit.seen(Capacity(1, 1, None, pools, 0, 0, draining=False))  # type: ignore[arg-type]
        assert audit.unbalanced == unbalanced


@pytest.mark.parametrize(
    ("held", "counts"),
    [
        (lease((0, 10)), (0, 1)),
        (lease((0, 10), (20, 5), shared_pages=10), (1, 1)),
        (lease((0, 15), shared_pages=10), (1, 0)),
        (lease((0, 10), (10, 5), shared_pages=10), (1, 0)),
        (lease((0, 2), (5, 3), (9, 1), (20, 1), shared_pages=5), (2, 2)),
    ],
)
def test_extents_are_counted_as_the_core_counts_them(held: Lease, counts: tuple[int, int]) -> None:
    assert count_extents(held) == counts


def test_options_out_of_range_are_named_together() -> None:
    with pytest.raises(InvalidInput) as raised:
        Options(max_wait_s=601, decode_ms=-1, prefill_tps=0, speed=0)
    assert [problem.field for problem in raised.value.problems] == [
        "--max-wait",
        "--decode-ms",
        "--prefill-tps",
        "--speed",
    ]


def test_make_run_shows_a_node_under_load_and_ends_in_time(tmp_path: Path) -> None:
    import subprocess  # noqa: PLC0415
    import sys  # noqa: PLC0415

    from tests.conftest import ROOT  # noqa: PLC0415

    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/run.py")],
        env=environment(RUN_SECONDS="1", HISPARSE_HTTP="off", XDG_RUNTIME_DIR=str(tmp_path), TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("$ hisparse-svc capacity") == 3
    assert "200 requests, glm-5.2" in done.stdout
    assert f"unix:{tmp_path}/hisparse-run-" in done.stdout, "a socket of its own"
    assert not list(tmp_path.iterdir()), "nothing is left for the next run"
