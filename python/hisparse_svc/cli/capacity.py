"""`hisparse-svc capacity`: what a node has now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from hisparse_svc import _core
from hisparse_svc.cli import options, remote

LENGTH = "Say how many more requests of N tokens fit now, and what stops the next; may be repeated.  [plan's contexts]"


@click.command("capacity")
@options.flag("--length", "N", LENGTH, many=True)
@remote.target
@options.common
def command(length: tuple[Any, ...], target: str | None, timeout: str | None, as_json: bool) -> None:
    """Say what a node has now: every pool, the largest grant, and what fits."""
    from hisparse_svc.rpc import calls  # noqa: PLC0415 - as in `remote`

    asked = [each for each in length if remote.whole("--length", each)]
    usual = [] if asked or as_json else _core.tables()["calculator"]["contexts"]
    call = calls.get_capacity([*asked, *usual])
    with remote.connect(target, timeout) as client:
        answer = client.send(call)
    if as_json:
        remote.emit(answer)
        return
    seen = call.read(answer)
    if usual:  # nobody asked for what can never fit here
        seen = replace(seen, fits=tuple(fit for fit in seen.fits if fit.tokens <= seen.max_request_tokens))
    remote.show_capacity(seen)
