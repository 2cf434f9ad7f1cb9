"""Folders for what only this process needs, gone with it however it dies: at its end, on SIGTERM, or by the next one.

::

    begin ─► sweep: each folder with an `owner` file that nobody locks belonged to a dead process ─► removed
          ─► a folder of its own, mode 0700; `owner` appears in it locked, so a folder of the living is never swept
    end, exit, SIGTERM ─► removed        SIGKILL ─► the kernel drops the lock, and the next process sweeps

A forked child holds the lock too, and removes nothing. SIGTERM is taken only where nobody has taken it and Python lets
us, in the main thread; it then ends the process as it would have.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import stat
import tempfile
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["Scratch", "sweep"]

PREFIX = "hisparse-"
OWNER = "owner"
"""The file whose lock says that the folder's process lives."""


class Scratch:
    """A folder of its own, removed at the end by the process that made it, and by no forked child.

    Attributes:
        folder: Where it is.
    """

    def __init__(self) -> None:
        sweep()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = _lock(self.folder)
        self._remove = weakref.finalize(self, _remove_if_ours, self.folder, lock, os.getpid())
        _living.add(self)
        _end_on_sigterm()

    def cleanup(self) -> None:
        """Remove it now."""
        self._remove()


def sweep() -> None:
    """Remove this user's folders of processes that died without doing so; what cannot be removed stays."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                continue
            owner = os.open(folder / OWNER, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while its process lives
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(owner)


def _lock(folder: Path) -> int:
    """Put the owner's file there, which has its lock before it has its name."""
    nameless = folder / f".{OWNER}"
    lock = os.open(nameless, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    nameless.rename(folder / OWNER)
    return lock


def _remove_if_ours(folder: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


_living: weakref.WeakSet[Scratch] = weakref.WeakSet()


def _end_on_sigterm() -> None:
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _ended)


def _ended(number: int, _frame: FrameType | None) -> None:
    for scratch in list(_living):
        scratch.cleanup()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
