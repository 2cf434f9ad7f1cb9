"""One subject of the examination."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Check", "State", "unknown_reason"]

State = Literal["ok", "note", "unknown"]
"""``ok``: nothing to do. ``note``: something could be better, and the remedy says how. ``unknown``: not found out."""


@dataclass(frozen=True, slots=True)
class Check:
    """What was found about one subject, what it means, and how to change it.

    Attributes:
        name: The subject.
        state: Whether there is something to do.
        found: What the machine says, with units.
        meaning: What that means for this program.
        remedy: How to raise or change it; empty where there is nothing to do.
    """

    name: str
    state: State
    found: str
    meaning: str
    remedy: str = ""


def unknown_reason(finding: Any) -> str | None:
    """Give the reason why a finding of the core is not known; ``None`` where it is."""
    return str(finding["unknown"]) if isinstance(finding, dict) and "unknown" in finding else None
