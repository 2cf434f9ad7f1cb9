"""`hisparse-svc capacity`: what a node has now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from hisparse_svc import _core
from hisparse_svc.cli import options, remote
from hisparse_svc.errors import Gathered

LENGTH = "Say how many more requests of N tokens fit now, and what stops the next; may be repeated.  [plan's contexts]"

TENANT = "Say what this tenant would get, and what it may hold.  [one without settings that holds nothing]"

WAIT = "Wait so many seconds for a service that is not there yet, or makes its pool, before asking it.  [0]"


@click.command("capacity")
@options.flag("--length", "N", LENGTH, many=True)
@options.flag("--tenant", "T", TENANT)
@options.flag("--wait", "S", WAIT)
@remote.target
@options.common
def command(
    *,
    length: tuple[Any, ...],
    tenant: str | None,
    wait: str | None,
    target: str | None,
    timeout: str | None,
    as_json: bool,
) -> None:
    """Say what a node has now: every pool, the largest grant, and what fits."""
    from hisparse_svc.rpc import calls  # noqa: PLC0415 - as in `remote`

    found = Gathered()
    asked = remote.lengths(found, length)
    usual = [] if asked or as_json else _core.tables()["calculator"]["contexts"]
    call = found.read(calls.get_capacity, [*asked, *usual], tenant or "")
    wait_s = found.read(remote.seconds, "--wait", wait, 0.0)
    client = found.read(remote.connect, target, timeout)
    found.end()
    assert call is not None  # noqa: S101 - nothing was found, so both were read
    assert client is not None  # noqa: S101 - as above
    with client:
        if wait_s:
            remote.until_ready(client, wait_s)
        answer = client.send(call)
    if as_json:
        remote.emit(answer)
        return
    seen = call.read(answer)
    if usual:  # nobody asked for what can never fit here
        seen = replace(seen, fits=tuple(fit for fit in seen.fits if fit.tokens <= seen.max_request_tokens))
    remote.show_capacity(seen)
