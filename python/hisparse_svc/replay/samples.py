"""Traces: read from a file, or the bundled sample."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

from hisparse_svc import _core, files

if TYPE_CHECKING:
    import os

    from hisparse_svc._core import Trace

SAMPLE = "sample"
"""Stands for the bundled trace: the first 200 requests of Mooncake's conversation trace."""


def load_trace(path: str | os.PathLike[str], limit: int | None = None) -> Trace:
    """Read a Mooncake trace, or its first `limit` requests; `sample` is the bundled one.

    Raises:
        InvalidInput: It is no file of text, or every line that is broken, out of order or out of range, by its number.
    """
    trace = _core.Trace.parse(_text(path))
    return trace if limit is None else trace.first(limit)


def _text(path: str | os.PathLike[str]) -> str:
    if path == SAMPLE:
        return (resources.files("hisparse_svc") / "data" / "conversation_200.jsonl").read_text(encoding="utf-8")
    return files.read_text(path, "TRACE", most_bytes=_core.MAX_TRACE_BYTES)
