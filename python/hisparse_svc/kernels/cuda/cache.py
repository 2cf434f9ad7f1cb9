"""Cubins on disk, so that a kernel is compiled once per machine and not once per process.

::

    $HISPARSE_CACHE_DIR, else $XDG_CACHE_HOME/hisparse-svc/cubin, else ~/.cache/hisparse-svc/cubin     (0700)
      <sha256 of source, options, architecture, compiler and driver>.cubin  =  sha256 of the code (32 bytes) │ code

A file that is not whole is compiled again; one that another user owns, or may write, is not used. A folder that cannot
be written costs a compile per process and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path

__all__ = ["folder", "load", "store"]

_DIGEST_BYTES = 32


def folder() -> Path:
    """Give the folder of cubins; it may not exist yet."""
    if chosen := os.environ.get("HISPARSE_CACHE_DIR"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hisparse-svc" / "cubin"


def load(key: str) -> bytes | None:
    """Give the cubin stored under `key`; none if there is none to be trusted."""
    path = folder() / f"{key}.cubin"
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            stored = file.read()
    except OSError:
        return None
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return None
    digest, code = stored[:_DIGEST_BYTES], stored[_DIGEST_BYTES:]
    return code if code and hashlib.sha256(code).digest() == digest else None


def store(key: str, code: bytes) -> None:
    """Keep a cubin under `key`. A reader sees the whole file or none."""
    with contextlib.suppress(OSError):
        target = folder()
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=target, prefix=f".{key[:16]}-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(hashlib.sha256(code).digest() + code)
            Path(name).replace(target / f"{key}.cubin")
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
