"""What flags share: the two every command has, value kinds, and reading flags as plain data.

Flags stay text until the core reads them, so that a command line with three mistakes gets three answers. Kinds below
exist for help texts and shell completion; they refuse nothing.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from hisparse_svc import _core

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Kind = click.ParamType[Any]
else:
    Kind = click.ParamType  # generic only in the stubs of some versions

WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,4})?|[+-]?(nan|inf|infinity)", re.IGNORECASE)


def literal(text: str) -> bool | int | float | str:
    """Read a flag's text as the plain value it looks like: a number, ``true`` or ``false``, else the text itself."""
    if text in ("true", "false"):
        return text == "true"
    if WHOLE.fullmatch(text):
        return int(text)
    if DECIMAL.fullmatch(text):
        return float(text)
    return text


class Words(Kind):
    """One of a few words: named in the help, completed by the shell, judged by the core."""

    name = "word"

    def __init__(self, words: Iterable[str]) -> None:
        self.words = tuple(words)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Name the words in the help."""
        del param, ctx
        return "|".join(self.words)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Offer the words that start with what is typed."""
        del ctx, param
        return [CompletionItem(word) for word in self.words if word.startswith(incomplete)]


class ModelWord(Kind):
    """A preset, a config.json or a folder with one."""

    name = "model"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Offer presets, then files."""
        del ctx, param
        presets = [
            CompletionItem(name) for name in (preset.name for preset in _core.presets()) if name.startswith(incomplete)
        ]
        return [*presets, CompletionItem(incomplete, type="file")]


class FileOut(Kind):
    """A file to write, as a :class:`~pathlib.Path`."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Make the path."""
        del param, ctx
        return Path(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Let the shell offer files."""
        del ctx, param
        return [CompletionItem(incomplete, type="file")]


def choices(key: str, *more: str) -> Words:
    """Give the words that the core knows for ``key``, and ``more`` that only one command takes."""
    return Words([*_core.choices(key), *more])


class Number(Kind):
    """A flag that holds a number, handed on as whatever plain value it looks like."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the text."""
        del param, ctx
        return literal(value) if isinstance(value, str) else value


NUMBERS = ("N", "R")
"""Metavars of flags whose text is read as a number; all others stay text."""


def flag(name: str, kind: str | Words, text: str, *, many: bool = False) -> Callable[..., Any]:
    """Declare a flag that takes a value: one of a few words, or what its metavar ``kind`` says."""
    if isinstance(kind, Words):
        return click.option(name, type=kind, multiple=many, help=text)
    return click.option(name, metavar=kind, type=Number() if kind in NUMBERS else str, multiple=many, help=text)


def given(flags: dict[str, Any]) -> dict[str, Any]:
    """Keep the flags that were given."""
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in flags.items()
        if value is not None and value is not False and value != ()
    }


def common(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--json`` (handed on as ``as_json``) and ``--debug`` (kept for the error printer)."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout and nothing else.")
    @click.option("--debug", is_flag=True, help="On an error, print the traceback too.")
    @functools.wraps(command)
    def with_common(*args: Any, debug: bool, **kwargs: Any) -> Any:
        del debug  # read from the arguments by `app.main`, which sees errors that click raises before this runs
        return command(*args, **kwargs)

    return with_common
