"""`hisparse-svc serve`: the service, until it is told to stop."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from hisparse_svc import _core, config
from hisparse_svc.cli import options, output
from hisparse_svc.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from hisparse_svc.node import Node


def flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give the command one flag per setting of the table."""
    for name, field in reversed(config.settings().items()):
        flag, told = f"--{name.replace('_', '-')}", field.metadata
        default = field.default
        shown = f"{told['help']}  [{default}]" if isinstance(default, (str, int)) and default else told["help"]
        if told["metavar"]:
            command = click.option(flag, name, metavar=told["metavar"], multiple=True, help=shown)(command)
        else:
            command = click.option(flag, name, is_flag=True, default=None, help=shown)(command)
    return command


@click.command("serve")
@flags
@click.option(
    "--config", "file", metavar="FILE.toml", multiple=True, help="Read settings from here; flags and variables beat it."
)
@options.common
def command(file: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Serve gRPC hisparse.v1 on a Unix socket until SIGTERM or Ctrl-C.

    Every flag may also be a variable (HISPARSE_HOST_POOL=160GiB) or a key of the file (host_pool = "160GiB"); a flag
    beats a variable, a variable beats the file, and an unknown name is an error. With --json the ready line is one
    JSON document. The pool's memory is made first: probes are answered meanwhile, and the ready line comes after it.
    """
    from hisparse_svc import node  # noqa: PLC0415 - as `output.console`

    flags = {name: typed(value) for name, value in given.items()}
    settings, problems, unread = config.read(flags, file=next(iter(file), None))
    if len(file) > 1:
        problems.append(Problem("--config", ", ".join(file), "was given more than once", "keep one of them"))
    if problems:
        node.check(settings, problems, unread)
    with node.Node.start(settings, handle_signals=True, progress=Progress()) as served:
        for warning in served.warnings:
            click.echo(f"warning: {output.plain(warning)}", err=True)
        if served.stopping:
            pass  # told to before its pool was made: it was never ready
        elif as_json:
            output.emit_json(served.description())
        else:
            click.echo(output.plain(ready(served)))
        _flush()
        served.wait()
    if not as_json:
        click.echo("stopped")


def typed(value: Any) -> Any:
    """Give what a flag says: nothing, its one value, or a tuple where it was typed several times."""
    if not isinstance(value, tuple):
        return value
    return value if len(value) > 1 else next(iter(value), None)


class Progress:
    """Tells people on stderr how far the pool is: in place on a terminal, else one line every few seconds."""

    EVERY_S = 3.0

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, made_bytes: int, total_bytes: int) -> None:
        """Say so, unless it was said a moment ago."""
        text = f"making the host pool: {_core.show_size(made_bytes)} of {_core.show_size(total_bytes)}"
        if sys.stderr.isatty():
            click.echo(f"\r\x1b[K{text}", nl=made_bytes == total_bytes, err=True)
        elif time.monotonic() - self._last >= self.EVERY_S:
            self._last = time.monotonic()
            click.echo(text, err=True)


def ready(node: Node) -> str:
    """Say in one line that it serves: where, and how much."""
    told = node.description()
    much = f"{told['host_pages']:,} pages, {told['seats']:,} seats, {told['max_request_tokens']:,} tokens at most"
    return f"ready: {', '.join(node.addresses)}; {told['model']}, backing {told['backing']}: {much}"


def _flush() -> None:
    """Hand the ready line to whoever waits for it, also through a pipe."""
    sys.stdout.flush()
