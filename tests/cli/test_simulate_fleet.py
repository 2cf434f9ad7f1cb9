"""`simulate-fleet`: small fleets as a user plays them, and the largest one for a moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hisparse_svc
import pytest
from hisparse_svc import _core
from hisparse_svc._core import SimulatedFleet
from hisparse_svc.cli import simulate_fleet_file
from hisparse_svc.replay.samples import SAMPLE, load_trace
from hisparse_svc.replay.simulated_fleet import DEFAULTS, Wanted, play

from tests.cli.test_bad_input import refuse

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Run

SMALL = ("simulate-fleet", "--nodes", "10", "--routers", "5", "--warm", "2", "--seconds", "5")
TWO = (*SMALL, "--staleness", "0,2", "--policies", "most_left,random:1")

MOST_BYTES = 1 << 30
"""What 10,000 nodes with 100 routers may take. A router's picture of a node is a third of a KiB."""


def test_a_table_has_a_row_for_each_fleet_age_rule_and_seed(cli: Callable[..., Run]) -> None:
    done = cli(*TWO, "--seeds", "1,2", "--json")
    assert done.code == 0, done.err
    rows = done.document["runs"]
    keys = [(row["staleness_s"], row["policy"], row["choices"], row["seed"]) for row in rows]
    rules = [("most_left", DEFAULTS["choices"]), ("random", 1)]
    assert keys == [(age, *rule, seed) for age in (0.0, 2.0) for rule in rules for seed in (1, 2)]
    for row in rows:
        assert row["admitted"] + sum(row["refused"].values()) == row["offered"] > 0, row
        assert 0 < row["goodput"] <= 1 <= row["attempts_per_admit"], row
        assert (row["overcommit"], row["two_leases"]) == (0, 0), row
    text = cli(*TWO)
    assert text.code == 0
    assert "most_left" in text.out
    assert "two leases, in all runs: 0" in text.out


def test_a_seed_is_one_run_and_every_part_of_the_setup_counts(cli: Callable[..., Run]) -> None:
    one = (*SMALL, "--staleness", "0.5", "--policies", "most_left", "--json")
    assert cli(*one).out == cli(*one).out
    plain = cli(*one).document["runs"][0]
    changes = (
        ("--seeds", "2"),
        ("--load", "0.5"),
        ("--deaths", "0.5"),
        ("--slow", "1"),
        ("--patience", "0.1"),
        ("--pages", "4096"),
        ("--seats", "4"),
        ("--choices", "9"),
        ("--no-bursts",),
    )
    for change in changes:
        assert cli(*one, *change).document["runs"][0]["trace"] != plain["trace"], change


def test_a_document_is_kept_run_by_run_and_gone_on_with(cli: Callable[..., Run], tmp_path: Path) -> None:
    out = tmp_path / "table.json"
    first = cli(*SMALL, "--staleness", "0", "--policies", "random", "--out", str(out), "--json")
    assert first.code == 0, first.err
    more = cli(*TWO, "--out", str(out), "--json")
    assert [row["policy"] for row in more.document["runs"]][:1] == ["random"]
    assert len(more.document["runs"]) == 5, "one of random with its default, and four"
    assert sum('"seed": 1' in line for line in out.read_text(encoding="utf-8").splitlines()) == 5, "a run a line"
    began = time.monotonic()
    assert cli(*TWO, "--out", str(out), "--json").document == more.document
    assert time.monotonic() - began < 30
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        '{"timestamp": 0, "input_length": 900, "output_length": 90, "hash_ids": [1, 2]}\n', encoding="utf-8"
    )
    refuse(cli(*TWO, "--trace", str(trace), "--out", str(out)), "--out", "another trace")
    out.write_text('{"runs": [{"nodes": 1}]}', encoding="utf-8")
    refuse(cli(*TWO, "--out", str(out)), "--out", "no document of this command")
    refuse(cli(*TWO, "--out", "/dev/zero"), "--out", "not a regular file")


class Slow:
    """A clock, and files that take a time for each line to write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, line_s: float) -> None:
        self.now, self.written, self.busy_s = 0.0, 0, 0.0
        text_of = simulate_fleet_file.text_of

        def writing(document: dict[str, Any], lines: list[str]) -> str:
            self.written += 1
            self.busy_s += line_s * len(lines)
            self.now += line_s * len(lines)
            return text_of(document, lines)

        monkeypatch.setattr(simulate_fleet_file, "text_of", writing)


@pytest.mark.parametrize("line_s", [0.0, 1e-4])
def test_a_document_is_written_no_more_often_than_it_is_worth_and_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line_s: float
) -> None:
    out, slow = tmp_path / "table.json", Slow(monkeypatch, line_s)
    document: dict[str, Any] = {"trace": "x", "trace_requests": 1, "runs": []}
    seen = []
    with simulate_fleet_file.Kept(document, out, clock=lambda: slow.now) as kept:
        for number in range(2_000):
            kept.add({"run": number})
            seen.append(len(json.loads(out.read_text(encoding="utf-8"))["runs"]))
            slow.now += 0.05
    assert seen[0] == 1, "at once, so that a file that cannot be written ends it before hours have gone"
    assert max(number - there for number, there in enumerate(seen)) * 0.05 <= max(1.0, 20 * 2_000 * line_s) + 0.1
    assert slow.written <= 2_000 * 0.05 + 3, "not after every run"
    assert slow.busy_s <= slow.now / 20 + 2 * 2_000 * line_s
    assert json.loads(out.read_text(encoding="utf-8")) == document
    assert [path.name for path in tmp_path.iterdir()] == ["table.json"]


def test_what_was_played_before_a_failure_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "table.json"
    document: dict[str, Any] = {"trace": "x", "trace_requests": 1, "runs": []}

    def play() -> None:
        with simulate_fleet_file.Kept(document, out, clock=lambda: 0.0) as kept:
            for number in range(7):
                kept.add({"run": number})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play()
    assert len(json.loads(out.read_text(encoding="utf-8"))["runs"]) == 7


@pytest.mark.parametrize(("number", "told"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "told to stop")])
def test_a_table_that_is_told_to_stop_keeps_its_runs_and_goes_on_later(
    cli: Callable[..., Run], tmp_path: Path, number: signal.Signals, told: str
) -> None:
    out = tmp_path / "table.json"
    table = (*SMALL, "--staleness", "0", "--policies", "random", "--seeds", ",".join(map(str, range(1, 401))))
    command = [sys.executable, "-m", "hisparse_svc", *table, "--out", str(out), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not out.exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.005)
        process.send_signal(number)
        written, err = process.communicate(timeout=20)
    assert (process.returncode, written, err.strip()) == (128 + number, "", f"error: {told}")
    runs = json.loads(out.read_text(encoding="utf-8"))["runs"]
    assert 1 <= len(runs) < 400
    assert [path.name for path in tmp_path.iterdir()] == ["table.json"]
    longer = (*SMALL, "--staleness", "0", "--policies", "random", "--seeds", "1,2,3")
    again = cli(*longer, "--out", str(out), "--json").document["runs"]
    assert again[: len(runs)] == runs


def test_plots_are_written_one_for_each_fleet(cli: Callable[..., Run], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "plots"
    done = cli(*TWO, "--nodes", "5,10", "--plot", str(folder))
    assert done.code == 0, done.err
    written = sorted(path.name for path in folder.iterdir())
    assert written == ["fleet_10_90.png", "fleet_5_90.png"]
    assert all((folder / name).read_bytes().startswith(b"\x89PNG") for name in written)
    assert all(str(folder / name) in done.out for name in written)


def test_all_that_is_wrong_is_said_at_once(cli: Callable[..., Run], tmp_path: Path) -> None:
    missing = tmp_path / "no" / "table.json"
    done = cli(
        *(
            "simulate-fleet",
            "--nodes",
            "0,20000",
            "--routers",
            "101",
            "--staleness",
            "x",
            "--policies",
            "best",
        ),
        *("--load", "11", "--deaths", "2", "--seconds", "1e6", "--out", str(missing)),
    )
    refuse(done, "--nodes", "from 1 to 10000", "every router keeps a picture of every node")
    refuse(done, "--routers", "from 1 to 100")
    for field, word in {
        "--staleness": "number",
        "--policies": "most_left",
        "--load": "to 10",
        "--deaths": "to 1",
    }.items():
        refuse(done, field, word)
    refuse(done, "--seconds", "at most 3600 s")
    refuse(done, "--out", "folder")
    assert len(done.errors) == 9, done.errors


def test_a_plot_folder_that_cannot_be_made_is_refused_before_anything_is_played(
    cli: Callable[..., Run], tmp_path: Path
) -> None:
    refuse(cli(*TWO, "--plot", str(tmp_path / "no" / "plots")), "--plot", "folder that exists")
    file = tmp_path / "file"
    file.touch()
    refuse(cli(*TWO, "--plot", str(file)), "--plot", "must be a folder")


def test_a_rule_that_compares_nothing_is_refused(cli: Callable[..., Run]) -> None:
    refuse(cli(*SMALL, "--policies", "random:0"), "--choices", "from 1 to 1024")
    refuse(cli(*SMALL, "--policies", "random:x"), "--policies", "whole number")


def test_more_requests_than_are_kept_are_refused(cli: Callable[..., Run]) -> None:
    done = cli("simulate-fleet", "--nodes", "10000", "--seconds", "3600", "--staleness", "0", "--policies", "random")
    refuse(done, "--seconds", "at most 2000000")


def test_progress_goes_up_and_what_is_known_is_not_played_again() -> None:
    wanted = Wanted(nodes=(10,), staleness_s=(0.0,), rules=(("random", 1),), seeds=(1, 2), routers=5, measured_s=5.0)
    seen: list[float] = []
    rows = list(play(wanted, load_trace(SAMPLE), seen.append))
    assert len(rows) == 2
    assert all(one <= other for one, other in pairwise(seen))
    assert 0 < seen[0] < 1 < seen[-1] <= 2
    assert list(play(wanted, load_trace(SAMPLE), known=rows[:1])) == rows[1:]


@pytest.mark.parametrize("simulated", [True, False])
def test_ctrl_c_while_the_bar_is_drawn_is_not_taken_for_a_bar_that_fails(simulated: bool, tmp_path: Path) -> None:
    wanted = Wanted(nodes=(10,), staleness_s=(0.0,), rules=(("random", 1),), routers=5, measured_s=5.0)
    slots = {"request_slots": 64, "max_wait_s": 1.0, "decode_ms": 1.0, "prefill_tps": 20_000}
    line = '{"timestamp": 0, "input_length": 900, "output_length": 90, "hash_ids": [1, 2]}\n'
    (tmp_path / "trace.jsonl").write_text(line * 300, encoding="utf-8")  # a replay tells of every 256th
    trace = load_trace(str(tmp_path / "trace.jsonl"))

    def play_one(progress: Callable[[float], None]) -> object:
        if simulated:
            return list(play(wanted, trace, progress))
        return _core.replay_trace(trace, hisparse_svc.plan("glm-5.2"), progress=progress, **slots)  # type: ignore[arg-type]

    def failing(kind: type[BaseException]) -> Callable[[float], None]:
        def progress(_: float) -> None:
            raise kind

        return progress

    assert play_one(failing(ValueError)) == play_one(lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        play_one(failing(KeyboardInterrupt))


def _processor_s(pid: int) -> float:
    """Processor time of a process that still runs, or is waited for."""
    words = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(sys.platform != "linux", reason="processor time is read from /proc")
def test_an_interruption_ends_a_long_run_at_once() -> None:
    command = [sys.executable, "-m", "hisparse_svc", "simulate-fleet", "--nodes", "1000", "--seconds", "600"]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while _processor_s(process.pid) < 3.0:  # far beyond its imports, however busy the machine
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err.strip()) == (130, "", "error: interrupted")


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process's memory is read from /proc")
def test_ten_thousand_nodes_and_a_hundred_routers_fit_in_a_gibibyte() -> None:
    code = (
        "from hisparse_svc.replay.simulated_fleet import Wanted, play\n"
        "from hisparse_svc.replay.samples import load_trace\n"
        "wanted = Wanted(nodes=(10_000,), staleness_s=(0.5,), rules=(('most_left', 2),), load_milli=100, warm_s=0.0,\n"
        "                measured_s=0.2, patience_s=0.2)\n"
        "(row,) = play(wanted, load_trace('sample'))\n"
        "assert row['offered'] > 50 and row['goodput'] > 0.9 and row['overcommit'] == 0, row\n"
        "print(open('/proc/self/status').read())\n"
    )
    # Not `ru_maxrss`: that of a child begins with what its parent had as it was started.
    status = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout
    peak_kib = int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1])
    assert peak_kib * 1_024 < MOST_BYTES, f"{peak_kib:,} KiB"


def test_the_defaults_are_those_of_the_routers() -> None:
    given: dict[str, Any] = {name: value for name, value in DEFAULTS.items() if name not in ("rules", "choices")}
    fleet = SimulatedFleet(
        nodes=1, staleness_s=0, policy="most_left", choices=DEFAULTS["choices"], seed=1, bursts=True, **given
    )
    assert repr(fleet) == "SimulatedFleet(1 nodes, 100 routers, seed 1)"
    assert ("most_left", DEFAULTS["choices"]) in DEFAULTS["rules"]
