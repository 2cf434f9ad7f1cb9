"""Tables with long names: whole for scripts, and in a terminal as wide as it is."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from typing import TYPE_CHECKING

import pytest
from hisparse_svc.cli.output import SHORTEST, shortened, shrink
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import run
from tests.serve.conftest import environment, serve

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.serve.conftest import Served

__all__ = ["serve"]

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
LONG = "decode-" + "x" * 239 + "-7b9fd4"


def in_terminal(columns: int, *command: str) -> list[str]:
    """The lines that a command writes to a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "hisparse_svc", *command],
        env=environment(TERM="xterm", NO_COLOR="1", PYTHONUTF8="1", COLUMNS=""),
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    written = b""
    with contextlib.suppress(OSError):  # what a terminal says that nobody writes to any more
        while part := os.read(ours, 65_536):
            written += part
    assert process.wait(timeout=30) == 0
    os.close(ours)
    return ESCAPES.sub("", written.decode("utf-8")).splitlines()


@pytest.mark.parametrize("columns", [80, 110, 400])
def test_long_names_are_shortened_to_the_terminal_and_whole_elsewhere(
    serve: Callable[..., Served], columns: int
) -> None:
    node = serve(name="a")
    held = node.client().admit(64, request_id=f"first-{'r' * 116}-last", ttl_s=60)
    fleet = ("fleet", "--target", f"{LONG}={node.target}")
    leases = ("leases", "--target", node.target)
    for command, name, first, last in ((fleet, LONG, "decode-", "-7b9fd4"), (leases, "r" * 116, "first-", "-last")):
        drawn = in_terminal(columns, *command)
        (line,) = [line for line in drawn if first in line]
        assert last in line, "its end tells it from its neighbours"
        assert (name in line) == (columns == 400)
        if command is leases:
            assert held.lease.id in line, "it is what one releases"
        if command is fleet or columns > 80:
            assert max(map(len, drawn)) <= columns, drawn
        assert name in run(*command).out, "nothing is cut where nobody looks"
        assert name in run(*command, "--json").out


def test_a_terminal_that_is_too_narrow_even_so_still_gets_every_figure(serve: Callable[..., Served]) -> None:
    node = serve(name="a")
    drawn = in_terminal(30, "fleet", "--target", f"{LONG}={node.target}")
    wide = in_terminal(400, "fleet", "--target", f"{LONG}={node.target}")
    assert drawn[1].split()[-5:] == wide[1].split()[-5:]
    assert len(drawn[1].split()[0]) == SHORTEST


def test_without_the_letter_for_it_three_points_stand_for_what_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain:
        encoding = "ascii"

    assert shortened("0123456789", 7) == "012…789"
    monkeypatch.setattr(sys, "stdout", Plain())
    assert shortened("0123456789", 7) == "01...89"


@given(text=st.text(max_size=300), width=st.integers(0, 300))
def test_a_shortened_text_is_as_wide_as_it_may_be_and_keeps_both_ends(text: str, width: int) -> None:
    short = shortened(text, width)
    assert len(short) == min(len(text), width)
    if len(text) > width >= 3:
        assert (short[0], short[-1]) == (text[0], text[-1])


@given(widths=st.lists(st.integers(1, 260), min_size=1, max_size=8), columns=st.integers(0, 400), data=st.data())
def test_only_names_give_way_and_no_more_than_they_must(widths: list[int], columns: int, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.integers(0, len(widths) - 1), unique=True))
    shrunk = list(widths)
    shrink(shrunk, names, columns)
    total = sum(shrunk) + 2 * (len(shrunk) - 1)
    for place, (before, after) in enumerate(zip(widths, shrunk, strict=True)):
        assert after == before or (place in names and SHORTEST <= after < before)
    if shrunk != widths:
        assert total >= columns
    if total > columns:
        assert all(shrunk[place] <= SHORTEST for place in names)
