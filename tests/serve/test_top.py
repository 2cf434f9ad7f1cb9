"""`top`: one picture for scripts, and a live one in a terminal that changes its size."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING

import pytest
from hisparse_svc.cli import top_text
from rich.console import Console

from tests.conftest import environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.serve.conftest import Served

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b[=>]")


class Terminal:
    """`top` in a terminal of a size."""

    def __init__(self, target: str, columns: int, lines: int) -> None:
        self.ours, theirs = pty.openpty()
        self.resize(columns, lines)
        words = [sys.executable, "-m", "hisparse_svc", "top", "--interval", "0.3", "--target", target]
        self.process = subprocess.Popen(
            words,
            env=environment(TERM="xterm", PYTHONUTF8="1"),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            close_fds=True,
        )
        os.close(theirs)
        os.set_blocking(self.ours, False)
        self.written = ""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, key: str) -> None:
        os.write(self.ours, key.encode())

    def reads(self, text: str, seconds: float = 15.0) -> list[str]:
        """Lines of what came since the last look, once a text is among them."""
        end, came = time.monotonic() + seconds, ""
        while text not in ESCAPES.sub("", came):
            assert time.monotonic() < end, f"no {text!r} in {came[-2_000:]!r}"
            try:
                came += os.read(self.ours, 65_536).decode("utf-8", "replace")
            except BlockingIOError:
                time.sleep(0.02)
        return ESCAPES.sub("", came).splitlines()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=10)
        os.close(self.ours)


@pytest.fixture
def terminal(node: Served) -> Iterator[Terminal]:
    shown = Terminal(node.target, 80, 30)
    yield shown
    shown.close()


def test_one_picture_for_scripts_and_one_document(node: Served) -> None:
    held = node.cli("admit", "--prompt-tokens", "4096", "--ttl", "60", "--json").document["lease"]
    told = node.cli("top", "--once", "--length", "8192", "--length", "640")
    assert told.code == 0
    assert re.search(r"host pages .* 246 free of 310", told.out)
    assert held["id"] in told.out
    assert re.search(r"length +8K +640", told.out)
    assert "no engine reports yet" in told.out
    document = node.cli("top", "--json").document
    capacity = node.cli("capacity", "--json").document
    assert document["capacity"]["pools"] == capacity["pools"]
    assert document["leases_total"] == 1
    assert document["leases"][0]["id"] == held["id"]
    assert sum(document["map"]["reserved"]) == 64
    assert node.cli("top").errors == ["stdout is no terminal: needs a terminal; use --once or --json for scripts"]
    assert node.cli("top", "--interval", "0.01", "--once").code == 2


@pytest.mark.parametrize("columns", [60, 80, 132])
def test_no_line_is_wider_than_the_terminal(node: Served, columns: int) -> None:
    node.cli("admit", "--prompt-tokens", "4096", "--ttl", "60")
    document = node.cli("top", "--json").document
    screen = Console(width=columns, height=30, record=True, file=io.StringIO())
    screen.print(top_text.picture(document, top_text.Size(columns, 30)))
    lines = screen.export_text().splitlines()
    assert max(map(len, lines)) <= columns
    assert len(lines) <= 30, "\n".join(lines)
    legend = " ".join(" ".join(lines).split())
    for sign, _, name in top_text.STATES.values():
        assert f"{sign} {name}" in legend, f"the legend has lost {name}: " + "\n".join(lines)


@pytest.mark.parametrize("columns", [60, 80, 132])
def test_a_terminal_shows_the_legend_whole(node: Served, columns: int) -> None:
    shown = Terminal(node.target, columns, 30)
    try:
        lines = shown.reads("leases by age")
    finally:
        shown.close()
    picture = " ".join(" ".join(lines).split())
    for sign, _, name in top_text.STATES.values():
        assert f"{sign} {name}" in picture, f"the legend has lost {name}: " + "\n".join(lines)
    assert max(map(len, lines)) <= columns


def test_it_is_live_takes_keys_and_leaves_the_terminal_as_it_was(node: Served, terminal: Terminal) -> None:
    terminal.reads("310 free of 310")
    node.cli("admit", "--prompt-tokens", "4096", "--ttl", "60")
    terminal.reads("246 free of 310")
    terminal.press("s")
    terminal.reads("leases by tokens")
    terminal.resize(120, 40)
    assert any(len(line) > 80 for line in terminal.reads("246 free of 310", 5))
    terminal.press("q")
    assert terminal.process.wait(timeout=10) == 0
    assert termios.tcgetattr(terminal.ours)[3] & termios.ECHO


def test_a_service_that_goes_is_told_and_the_last_picture_stays(node: Served, terminal: Terminal) -> None:
    terminal.reads("310 free of 310")
    node.end()
    lines = terminal.reads("not connected")
    assert any("310 free of 310" in line for line in lines) or terminal.reads("310 free of 310")
    head = next(line for line in lines if "not connected" in line)
    assert "granting" not in head, "what it said last is no news"
    terminal.press("q")
    assert terminal.process.wait(timeout=15) == 0
