"""`hisparse-svc capacity`: what a node has now."""

from __future__ import annotations

from typing import Any

import click

from hisparse_svc.cli import options, remote


@click.command("capacity")
@options.flag("--length", "N", "Also say how many requests of this many tokens fit now; may be repeated.", many=True)
@remote.target
@options.common
def command(length: tuple[Any, ...], target: str | None, timeout: str | None, as_json: bool) -> None:
    """Say what a node has now: every pool, the largest grant, and what fits."""
    from hisparse_svc.rpc import calls  # noqa: PLC0415 - as in `remote`

    call = calls.get_capacity(length)
    with remote.connect(target, timeout) as client:
        answer = client.send(call)
    if as_json:
        remote.emit(answer)
    else:
        remote.show_capacity(call.read(answer))
