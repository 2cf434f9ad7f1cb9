"""Single keys from a terminal, without Enter; the terminal is as it was afterwards."""

from __future__ import annotations

import os
import select
import sys
from typing import Any, Self

try:
    import termios
    import tty
except ImportError:  # no terminal of that kind: then no key comes
    termios = None  # type: ignore[assignment]


class Keys:
    """Reads keys while it is open. Where stdin is no terminal none ever comes."""

    def __init__(self) -> None:
        self._stdin = sys.stdin if termios is not None and sys.stdin is not None and sys.stdin.isatty() else None
        self._before: Any = None

    def __enter__(self) -> Self:
        if self._stdin is not None:
            self._before = termios.tcgetattr(self._stdin)
            tty.setcbreak(self._stdin)
        return self

    def __exit__(self, *_: object) -> None:
        if self._stdin is not None:
            termios.tcsetattr(self._stdin, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str:
        """Give the next key, or `""` when so long has passed without one."""
        if self._stdin is None:
            select.select([], [], [], seconds)
            return ""
        ready, _, _ = select.select([self._stdin], [], [], seconds)
        if not ready:
            return ""
        # Past what Python reads ahead: `select` knows nothing of a key that waits there.
        return os.read(self._stdin.fileno(), 1).decode("latin-1").lower()
