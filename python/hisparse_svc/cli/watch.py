"""`hisparse-svc watch`: a node as it changes."""

from __future__ import annotations

import json
from typing import Any

import click

from hisparse_svc.cli import options, output, remote


@click.command("watch")
@options.flag("--length", "N", "Also say how many requests of this many tokens fit; may be repeated.", many=True)
@options.flag("--count", "N", "Stop after so many changes.  [never]")
@remote.target
@options.common
def command(length: tuple[Any, ...], count: Any, target: str | None, timeout: str | None, as_json: bool) -> None:
    """Follow a node until Ctrl-C: its state now, then after every change, at most 20 times a second.

    With --json each message of the service is one document on one line.
    """
    from hisparse_svc.rpc import calls, convert  # noqa: PLC0415 - as in `remote`
    from hisparse_svc.rpc.plain import to_plain  # noqa: PLC0415 - as in `remote`

    left = remote.whole("--count", count)
    call, watched = calls.watch_capacity(length), convert.Watched()
    with remote.connect(target, timeout) as client:
        for message in client.stream(call):
            seen = watched.feed(message)
            if as_json:
                click.echo(json.dumps(to_plain(message)))
            elif seen is not None:
                remote.show_capacity(seen)
                output.console().print()
            if left is not None and seen is not None:
                left -= 1
                if left <= 0:
                    return
