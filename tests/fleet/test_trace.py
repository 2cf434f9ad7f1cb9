"""The scene of `benches/fleet_trace.py`, short: one node killed and one drained while three routers play a trace."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.conftest import ROOT, environment


def test_nothing_is_held_twice_and_nobody_is_lost_when_nodes_die_and_drain() -> None:
    told = subprocess.run(
        [sys.executable, str(ROOT / "benches/fleet_trace.py"), "--requests", "120", "--speed", "15"],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=120,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    played = json.loads(told.stdout)
    assert (played["overcommit"], played["unbalanced"]) == (0, 0), told.stdout
    assert (played["requests_with_two_leases"], played["neither_finished_nor_refused"]) == (0, 0), told.stdout
    assert played["defects"] == [], told.stdout
    assert played["requests"] == 120
    assert set(played["leases_left"].values()) == {0}, told.stdout
    assert played["audits"] > 5
