"""Keys from a terminal: each is given, also those that come together."""

from __future__ import annotations

import os
import pty
import sys
import termios
from typing import TYPE_CHECKING

from hisparse_svc.cli import keys

if TYPE_CHECKING:
    import pytest


def test_keys_that_come_together_are_given_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    with open(theirs, encoding="utf-8") as stdin:  # noqa: PTH123 - a descriptor has no path
        monkeypatch.setattr(sys, "stdin", stdin)
        with keys.Keys() as pressed:
            os.write(ours, b"\x1b[AsQ")  # an arrow, then two that are meant
            assert [pressed.wait(5) for _ in range(5)] == ["\x1b", "[", "a", "s", "q"]
            assert pressed.wait(0) == ""
        assert termios.tcgetattr(theirs) == before
    os.close(ours)
