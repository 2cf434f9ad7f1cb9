"""What GPU benchmarks share: what they say and keep. Timers, host memory and such are in `hisparse_svc.bench.gpu`."""

from __future__ import annotations

import json
import shlex
import sys
import time
from typing import TYPE_CHECKING, Any

from hisparse_svc.bench.gpu import machine

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["document", "keep", "note"]

_START = time.time()


def note(*words: object) -> None:
    """Print a line with the seconds since the start."""
    print(f"[{time.time() - _START:6.1f}s]", *words, flush=True)


def document(unit: str, *, device: str = "cuda", **more: object) -> dict[str, Any]:
    """Begin a result: machine, command, what its figures are, and more."""
    return {**machine(device), "command": shlex.join(["python", *sys.argv]), "unit": unit, **more}


def keep(result: dict[str, Any], out: Path | None) -> None:
    """Write a result where one asked for it."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
