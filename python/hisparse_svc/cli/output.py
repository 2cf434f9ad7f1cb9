"""How commands speak: one JSON document on stdout, or short text for people; errors always on stderr."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console
    from rich.table import Table

    from hisparse_svc.errors import Problem


APART = "  "
"""Between two columns."""
ELLIPSIS = "…"
SHORTEST = 12
"""Letters that are left of a name, however narrow the terminal."""

BEYOND_ASCII = re.compile("[^\x00-\x7e]")


def emit_json(document: Any) -> None:
    """Print one JSON document."""
    emit_json_text(json_text(document))


def json_text(document: Any) -> str:
    """Give the text of one JSON document."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


def emit_json_text(text: str) -> None:
    """Print a document that is text already. JSON is UTF-8 in every locale; a lone surrogate becomes its escape."""
    # JSON lets stand what terminals obey or hide: DEL, the second set of controls, what turns the direction of text.
    safe = BEYOND_ASCII.sub(lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text)
    click.echo(safe.encode("utf-8"))


def never_fail_to_encode() -> None:
    r"""Write what the locale has no letter for as an escape: a path of bytes that are no text, `ü` in plain ASCII."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def leave_nothing_behind() -> None:
    """Flush; what cannot be written goes nowhere, or Python would try again at its exit and complain."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def rows(*columns: str, lines: Iterable[Iterable[str]], right: Iterable[str] = (), names: Iterable[str] = ()) -> None:
    """Print a table of plain text, a line for each of `lines`, that scripts can read.

    In a terminal that is too narrow, cells of the columns `names` are shortened; elsewhere nothing is, for they are
    copied and searched. What is too long even so, a terminal folds by itself, and copies it back whole.

    Args:
        columns: Their heads.
        lines: The cells.
        right: Columns that are drawn to the right.
        names: Columns whose cells may be shortened.
    """
    right = set(right)
    cells = [list(columns), *(list(line) for line in lines)]
    widths = [max(len(line[place]) for line in cells) for place in range(len(columns))]
    if sys.stdout.isatty():
        shrink(widths, [columns.index(name) for name in names], shutil.get_terminal_size().columns)
    for place, line in enumerate(cells):
        padded = (
            cell.rjust(width) if column in right else shortened(cell, width).ljust(width)
            for column, cell, width in zip(columns, line, widths, strict=True)
        )
        text = APART.join(padded).rstrip()
        click.echo(click.style(text, bold=True) if place == 0 else text)


def shrink(widths: list[int], places: Iterable[int], columns: int) -> None:
    """Make some columns of a table narrower, the widest first, until the whole is not wider than so many columns."""
    over = sum(widths) + len(APART) * (len(widths) - 1) - columns
    shrinking = [place for place in places if widths[place] > SHORTEST]
    while over > 0 and shrinking:
        widest = max(shrinking, key=lambda place: widths[place])
        widths[widest] -= 1
        over -= 1
        shrinking = [place for place in shrinking if widths[place] > SHORTEST]


def shortened(text: str, width: int) -> str:
    """Give at most so many letters of a text: names of one kind differ at their beginning or at their end."""
    if len(text) <= width:
        return text
    mark = ELLIPSIS if can_write(ELLIPSIS) else "..."
    kept = max(width - len(mark), 0)
    return (text[: kept - kept // 2] + mark + text[len(text) - kept // 2 :])[:width]


def can_write(text: str) -> bool:
    """Whether the locale of stdout has these letters."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, AttributeError):
        return False
    return True


def console() -> Console:
    """Give the console for people's text: no guessing at what to colour, and no wrapping where nobody looks."""
    from rich.console import Console  # noqa: PLC0415 - rich costs start-up time, and `--json` never draws

    plain = Console(highlight=False)
    return plain if plain.is_terminal else Console(highlight=False, width=100)


def table(*columns: str, left: Iterable[str] = ()) -> Table:
    """Start a plain table: numbers to the right, the named columns to the left."""
    from rich import box  # noqa: PLC0415 - as above
    from rich.table import Table  # noqa: PLC0415 - as above

    left = set(left)
    drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for column in columns:
        drawn.add_column(column, justify="left" if column in left else "right", overflow="fold")
    return drawn


def plain(text: str) -> str:
    """Escape what a terminal would obey or hide: text of other callers comes back from a service as they chose it."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )


def shown(text: str) -> str:
    """Give `plain` text for a console or a table of ours, with no markup in it."""
    from rich.markup import escape  # noqa: PLC0415 - as above

    return escape(plain(text))


def error(text: str) -> None:
    """Print one error, with what to do, on stderr."""
    click.echo(f"{click.style('error:', fg='red', bold=True)} {plain(text)}", err=True)


def warning(text: str) -> None:
    """Print one warning for people, after everything else."""
    label = "warning:"
    folded = textwrap.fill(f"{label} {text}", width=console().width, subsequent_indent=" " * (len(label) + 1))
    click.echo(click.style(label, fg="yellow", bold=True) + folded.removeprefix(label))


def problems_document(problems: Iterable[Problem]) -> dict[str, Any]:
    """Give the JSON form of a failed command."""
    return {"problems": [{"field": p.field, "value": p.value, "rule": p.rule, "remedy": p.remedy} for p in problems]}


def count(number: int | None) -> str:
    """Write a count with thousands separators; ``-`` where there is none."""
    return "-" if number is None else f"{number:,}"
