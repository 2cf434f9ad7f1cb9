"""Traces: read from a file, or the bundled sample."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from hisparse_svc import _core
from hisparse_svc.errors import InvalidInput, Problem

if TYPE_CHECKING:
    import os

    from hisparse_svc._core import Trace

SAMPLE = "sample"
"""Stands for the bundled trace: the first 200 requests of Mooncake's conversation trace."""


def load_trace(path: str | os.PathLike[str], limit: int | None = None) -> Trace:
    """Read a Mooncake trace, or its first `limit` requests; `sample` is the bundled one.

    Raises:
        InvalidInput: Every line that is broken, out of order or out of range, by its number.
    """
    trace = _core.Trace.parse(_text(path))
    return trace if limit is None else trace.first(limit)


def _text(path: str | os.PathLike[str]) -> str:
    if path == SAMPLE:
        return (files("hisparse_svc") / "data" / "conversation_200.jsonl").read_text(encoding="utf-8")
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as failure:
        problem = Problem("TRACE", f'"{path}"', f"must be UTF-8 text: {failure.reason}", "give a JSONL file")
        raise InvalidInput([problem]) from None
