"""A fleet that is written in a file: one node a line, read again when the file changes.

::

    # decode pool, rack 7
    decode-0=10.0.0.7:7411
    decode-1=10.0.0.8:7411      # a name of its own, or the target alone
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hisparse_svc import files
from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.fleet.directories.member import Member, read_members

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

MOST_BYTES = 16 << 20
LOOK_S = 1.0
"""Between two looks at the file."""


class WatchedFile:
    """A file of nodes; replacing it as a whole (`mv`, a ConfigMap's link) never shows half a fleet.

    One that named nodes and then has no byte is being written in place, or could not be (a full disk): the nodes stay.
    A fleet of nobody is a file with a comment.

    Args:
        path: The file.
        look_s: Seconds between two looks.

    Raises:
        InvalidInput: No file is named.
    """

    def __init__(self, path: str | os.PathLike[str], *, look_s: float = LOOK_S) -> None:
        if not os.fspath(path):
            raise InvalidInput([Problem("nodes", '""', "must name a file", "write file:/etc/hisparse/nodes")])
        self.path = Path(path)
        self.look_s = look_s
        self._has_named = False

    def follow(self, closing: threading.Event) -> Iterator[tuple[Member, ...]]:
        """Give the members now, and after every change of the file.

        Raises:
            InvalidInput: Every line that cannot be read, or a file that cannot.
        """
        told: tuple[Member, ...] | None = None
        stamp: tuple[int, ...] | None = None
        while not closing.is_set():
            now = self._stamp()
            if now != stamp or now is None:
                members = self._read()
                stamp = now
                if members != told:
                    told = members
                    yield members
            closing.wait(self.look_s)

    def _stamp(self) -> tuple[int, ...] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> tuple[Member, ...]:
        text = files.read_text(self.path, "nodes", most_bytes=MOST_BYTES)
        if not text and self._has_named:
            rule = "has become empty, and named nodes before"
            remedy = "write it anew, whole; where no node is meant, a comment says so"
            raise InvalidInput([Problem("nodes", f'"{files.printable(str(self.path))}"', rule, remedy)])
        lines = ((number, line.partition("#")[0].strip()) for number, line in enumerate(text.splitlines(), 1))
        named = [(f"{files.printable(str(self.path))}, line {number},", line) for number, line in lines if line]
        members = read_members([line for _, line in named], [where for where, _ in named])
        self._has_named |= bool(members)
        return members

    def __str__(self) -> str:
        """Say where the members come from."""
        return f"the file {self.path}"
