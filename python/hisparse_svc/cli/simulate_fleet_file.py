"""The document of `simulate-fleet` on disk: a run a line, whole at every moment.

::

    begun ─► document ─ add(row) ───────────────► FILE.part ─ rename ─► FILE     once a second, a twentieth of the time
                        the end, Ctrl-C, SIGTERM ─► likewise                     what is not there yet

Who is killed loses the runs of the last second, or of the last twenty times as long as the file takes to write.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from typing import TYPE_CHECKING, Any

from hisparse_svc import files
from hisparse_svc.errors import InvalidInput, Problem

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hisparse_svc._core import Trace

REST_S = 1.0
"""Shortest between two writes, …"""
SHARE = 20
"""… which take one part in so many of the time at most."""
MOST_BYTES = 1 << 28
"""Bound of a document that is gone on with: some 400,000 runs."""


class Kept:
    """A document that grows, and its file.

    Args:
        document: What it is at first.
        out: Where it is kept; nowhere where that is `None`.
        clock: Gives seconds.
    """

    def __init__(
        self, document: dict[str, Any], out: Path | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.document, self._out, self._clock = document, out, clock
        self._lines = [] if out is None else [json.dumps(row) for row in document["runs"]]
        self._unwritten = False
        self._next_at = clock()

    def add(self, row: dict[str, Any]) -> None:
        """Take a run in; write, where it is time."""
        self.document["runs"].append(row)
        if self._out is None:
            return
        self._lines.append(json.dumps(row))
        self._unwritten = True
        if self._clock() >= self._next_at:
            self._write(self._out)

    def _write(self, out: Path) -> None:
        begun = self._clock()
        partial = out.with_name(out.name + ".part")
        with partial.open("w", encoding="utf-8") as file:
            file.write(text_of(self.document, self._lines))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(out)
        self._unwritten = False
        now = self._clock()
        self._next_at = now + max(REST_S, SHARE * (now - begun))

    def __enter__(self) -> Kept:
        """Begin; nothing is written before a run is there."""
        return self

    def __exit__(self, *_: object) -> None:
        """Write what is not there yet, however it ends."""
        if self._out is not None and self._unwritten:
            self._write(self._out)


def text_of(document: dict[str, Any], lines: list[str]) -> str:
    """Write a document with a run a line, so that a difference shows runs."""
    head = json.dumps({name: value for name, value in document.items() if name != "runs"}, indent=1)
    runs = ",\n  ".join(lines)
    return f'{head.removesuffix("}").rstrip()},\n "runs": [\n  {runs}\n ]\n}}\n'


def begun(out: Path | None, trace: Trace) -> dict[str, Any]:
    """Give the document that `out` holds, or a new one.

    Raises:
        InvalidInput: It is no file that can be read, no such document, or has runs of another trace.
    """
    from hisparse_svc.replay.simulated_fleet import COMMON, KEY  # noqa: PLC0415 - only a command that runs

    mark = hashlib.sha256(repr(trace.requests()).encode()).hexdigest()[:16]
    new: dict[str, Any] = {"trace": mark, "trace_requests": len(trace), "runs": []}
    if out is None or not out.exists():
        return new
    text = files.read_text(out, "--out", most_bytes=MOST_BYTES)
    try:
        document = json.loads(text)
        ours = all({*KEY, *COMMON} <= set(row) for row in document["runs"])
        rule = "has runs of another trace" if document["trace"] != mark else ""
    except (ValueError, KeyError, TypeError):
        ours, rule, document = False, "", new
    if not ours or rule:
        rule = rule or "is there, and is no document of this command"
        raise InvalidInput([Problem("--out", f'"{out}"', rule, "name another file, or remove it")])
    return dict(document)
