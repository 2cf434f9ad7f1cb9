"""Files that a user names: read whole, but only what is a file, of a size that is bounded, in UTF-8.

::

    path ──open, never waiting──► regular? ──► within the bound? ──► UTF-8, with or without a byte order mark ──► text

A pipe could make the program wait for ever and a device could fill the memory, so neither is read.
"""

from __future__ import annotations

import os
import stat

from hisparse_svc.errors import InvalidInput, Problem

__all__ = ["printable", "read_text"]


def read_text(
    path: str | os.PathLike[str],
    field: str,
    *,
    most_bytes: int,
    missing: tuple[str, str] = ("must be a file that exists", "check the path"),
    given: str | os.PathLike[str] | None = None,
) -> str:
    """Read a file of at most `most_bytes`.

    Args:
        path: Where it is.
        field: What the user calls it, for the error.
        most_bytes: Its bound.
        missing: Rule and remedy where there is no such file.
        given: What the user wrote, where that is not the path.

    Raises:
        InvalidInput: It cannot be read, is no file, is too large, or is no text in UTF-8.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - the descriptor is what was checked
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                rule, remedy = "is not a regular file", "give a file, and not a pipe, a device or a folder"
            elif found.st_size > most_bytes:
                rule, remedy = f"holds {found.st_size} bytes: must be at most {most_bytes}", "give a smaller file"
            else:
                return _text(file.read(most_bytes + 1), most_bytes)
    except FileNotFoundError:
        rule, remedy = missing
    except UnicodeDecodeError as failure:
        rule = f"must be text in UTF-8, which ends at byte {failure.start}"
        remedy = "save it as UTF-8, or name the right file"
    except UnicodeEncodeError:
        rule = "cannot be written in the locale's encoding"
        remedy = "set LC_ALL=C.UTF-8, or rename the file to plain ASCII"
    except (OSError, ValueError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) else str(failure)
        rule, remedy = f"must be a file that can be read ({reason})", "check the path and its permissions"
    raise InvalidInput([Problem(field, f'"{printable(os.fspath(given or path))}"', rule, remedy)])


def _text(content: bytes, most_bytes: int) -> str:
    if len(content) > most_bytes:
        raise ValueError(f"it grew beyond {most_bytes} bytes while it was read")
    return content.decode("utf-8-sig")


def printable(text: str) -> str:
    r"""Give text that any encoder takes: a path's bytes that are no UTF-8 become `\xff`."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # surrogates that stand for no byte
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
