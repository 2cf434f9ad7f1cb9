"""Where a service is: `unix:PATH` or `HOST:PORT`, and the place where one is looked for without being told.

::

    given  ─►  HISPARSE_TARGET  ─►  unix:$XDG_RUNTIME_DIR/hisparse/hisparse.sock
                                    unix:/tmp/hisparse-UID/hisparse.sock   where there is no XDG_RUNTIME_DIR
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from hisparse_svc.errors import InvalidInput, Problem

VARIABLE = "HISPARSE_TARGET"

SOCKET_PATH_BYTES = 107
"""What `sockaddr_un` holds beside its closing zero."""

MOST_SHOWN = 253
"""Letters of a wrong target that an error shows: as many as the longest host name has."""

HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Target:
    """An address that gRPC can dial."""

    address: str
    """As gRPC takes it: ``unix:/run/h.sock``, ``127.0.0.1:7411``."""
    socket: Path | None
    """The socket's path, where it is one."""

    def __str__(self) -> str:
        """Give it as a user writes it."""
        return self.address


def default_socket() -> Path:
    """Give the path of the socket that `serve` makes, and clients dial, when nobody says otherwise."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):
        return Path(runtime) / "hisparse" / "hisparse.sock"
    return Path("/tmp") / f"hisparse-{os.getuid()}" / "hisparse.sock"  # noqa: S108 - `serve` makes it 0700 and checks the owner


def resolve(given: str | None, field: str = "target") -> Target:
    """Read a target, or find the one that the environment or the default names.

    Raises:
        InvalidInput: It is neither `unix:PATH` nor `HOST:PORT`, or the path is too long for a socket.
    """
    text = given
    if text is None:
        text, field = (
            (os.environ[VARIABLE], VARIABLE) if os.environ.get(VARIABLE) else (f"unix:{default_socket()}", field)
        )
    if text.startswith("unix:"):
        path = re.sub(r"^unix:(//(?=/))?", "", text)
        if not path:
            raise _bad(field, text, "must name a path", "write unix:/run/hisparse.sock")
        length = len(os.fsencode(path))
        if "," in path:
            rule = "holds a comma, at which gRPC begins another address"
            raise _bad(field, text, rule, "name one socket, by a path without one")
        if length > SOCKET_PATH_BYTES:
            rule = f"a socket's path has at most {SOCKET_PATH_BYTES} bytes, this one has {length}"
            raise _bad(field, text, rule, "use a shorter path")
        return Target(f"unix:{path}", Path(path))
    found = HOST_PORT.fullmatch(text)
    if not found or not 0 < int(found[2]) < 1 << 16:
        hint = "write unix:PATH for a socket" if text.startswith(("/", ".")) else "write unix:PATH or HOST:PORT"
        raise _bad(field, text, "is neither a socket nor an address", hint)
    return Target(text, None)


def _bad(field: str, text: str, rule: str, remedy: str) -> InvalidInput:
    shown = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"
    return InvalidInput([Problem(field, f'"{shown}"', rule, remedy)])
