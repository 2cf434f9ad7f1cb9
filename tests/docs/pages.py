"""The pages a reader sees, taken apart: fenced blocks with the mark above them, headings, links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(
    r"(?:<!-- walk(?:: (?P<walk>\w+))? -->\n+)?^(?P<ticks>```+)(?P<language>\w*)\n(?P<text>.*?)^(?P=ticks)$",
    re.DOTALL | re.MULTILINE,
)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (?P<text>.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    language: str
    text: str
    walk: str | None
    """`plain`, or the word of its mark, where a test runs it."""


def pages() -> list[Path]:
    """Every page for people that the repository has."""
    folders = ("docs", "deploy", "examples", "proto", "tests", "benches")
    below = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.md"))]
    return [*sorted(ROOT.glob("*.md")), *(path for path in below if "node_modules" not in path.parts)]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(found["language"], found["text"], (found["walk"] or "plain") if "<!-- walk" in found[0] else None)
        for found in FENCE.finditer(text)
    ]


def prose(page: Path) -> str:
    """A page without its fenced blocks and what is marked as code."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text(encoding="utf-8")))


def anchors(page: Path) -> set[str]:
    """The anchors that a code host gives a page's headings."""
    found: set[str] = set()
    for heading in HEADING.finditer(FENCE.sub("", page.read_text(encoding="utf-8"))):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading["text"]).replace("`", "")
        anchor = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        number = sum(1 for other in found if re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", other))
        found.add(f"{anchor}-{number}" if number else anchor)
    return found
