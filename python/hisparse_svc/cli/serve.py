"""`hisparse-svc serve`: the service, until it is told to stop."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from hisparse_svc import config
from hisparse_svc.cli import options, output

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
            command = click.option(flag, name, metavar=told["metavar"], type=str, help=shown)(command)
        else:
            command = click.option(flag, name, is_flag=True, default=None, help=shown)(command)
    return command


@click.command("serve")
@flags
@click.option("--config", "file", metavar="FILE.toml", help="Read settings from here; flags and variables beat it.")
@options.common
def command(file: str | None, as_json: bool, **given: Any) -> None:
    """Serve gRPC hisparse.v1 on a Unix socket until SIGTERM or Ctrl-C.

    Every flag may also be a variable (HISPARSE_HOST_POOL=160GiB) or a key of the file (host_pool = "160GiB"); a flag
    beats a variable, a variable beats the file, and an unknown name is an error. With --json the ready line is one
    JSON document.
    """
    from hisparse_svc.node import Node  # noqa: PLC0415 - as `output.console`

    settings = config.load(given, file=file)
    with Node.start(settings, handle_signals=True) as node:
        if as_json:
            output.emit_json(node.description())
        else:
            click.echo(ready(node))
        _flush()
        node.wait()
    if not as_json:
        click.echo("stopped")


def ready(node: Node) -> str:
    """Say in one line that it serves: where, and how much."""
    told = node.description()
    much = f"{told['host_pages']:,} pages, {told['seats']:,} seats, {told['max_request_tokens']:,} tokens at most"
    return f"ready: {', '.join(node.addresses)}; {told['model']}, backing {told['backing']}: {much}"


def _flush() -> None:
    """Hand the ready line to whoever waits for it, also through a pipe."""
    sys.stdout.flush()
