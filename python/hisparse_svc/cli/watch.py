"""`hisparse-svc watch`: a node as it changes."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import click

from hisparse_svc.cli import options, output, remote
from hisparse_svc.errors import Gathered


@click.command("watch")
@options.flag("--length", "N", "Also say how many requests of this many tokens fit; may be repeated.", many=True)
@options.flag("--tenant", "T", "Say what this tenant would get.  [one without settings that holds nothing]")
@options.flag("--count", "N", "Stop after so many changes.  [never]")
@remote.target
@options.common
def command(
    *,
    length: tuple[Any, ...],
    tenant: str | None,
    count: Any,
    target: str | None,
    timeout: str | None,
    as_json: bool,
) -> None:
    """Follow a node until Ctrl-C: its state now, then after every change, at most 20 times a second.

    A watch whose stream breaks goes on from where it was; it gives up when it could not for --timeout. With --json each
    message of the service is one document on one line.
    """
    from hisparse_svc.rpc.plain import to_plain  # noqa: PLC0415 - as in `remote`

    found = Gathered()
    lengths = remote.lengths(found, length)
    left = found.read(remote.whole, "--count", count)
    client = found.read(remote.connect, target, timeout)
    found.end()
    assert client is not None  # noqa: S101 - nothing was found, so it was made
    with client, contextlib.closing(client.watch_messages(lengths, tenant=tenant or "")) as messages:
        for message, seen in messages:
            if as_json:
                click.echo(json.dumps(to_plain(message)))
            elif seen is not None:
                if seen.resync:
                    output.console().print(f"[yellow]begun anew[/yellow], what was seen before is void: {seen.resync}")
                remote.show_capacity(seen)
                output.console().print()
            if left is not None and seen is not None:
                left -= 1
                if left <= 0:
                    return
