"""`hisparse-svc release`: give a lease back."""

from __future__ import annotations

import click

from hisparse_svc.cli import options, output, remote
from hisparse_svc.errors import InvalidInput, Problem


@click.command("release")
@click.argument("lease_id", required=False)
@options.flag("--request-id", "ID", "Name the lease by its request instead.")
@options.flag("--tenant", "T", "The lease's tenant.  [default]")
@remote.target
@options.common
def command(
    *,
    lease_id: str | None,
    request_id: str | None,
    tenant: str | None,
    target: str | None,
    timeout: str | None,
    as_json: bool,
) -> None:
    """Give a lease back. Releasing one that is gone already is no error."""
    from hisparse_svc.rpc import calls  # noqa: PLC0415 - as in `remote`

    if (lease_id is None) == (request_id is None):
        rule = (
            "needs the lease's id, or its request's with --request-id" if lease_id is None else "was given twice over"
        )
        raise InvalidInput([Problem("LEASE_ID", lease_id or "missing", rule, "give one of the two")])
    call = calls.release(lease_id or "", request_id or "", tenant or "")
    with remote.connect(target, timeout) as client:
        answer = client.send(call)
        released = call.read(answer)
        bound_ms = client.server_info().limits["quarantine_bound_ms"] if released.quarantined and not as_json else 0
    if as_json:
        remote.emit(answer)
        return
    if released.already_released:
        output.console().print("nothing to give back: it is unknown, or was released before")
    elif released.quarantined:
        output.console().print(
            "[yellow]quarantined[/yellow]: its pages may still be written to; they are free when its engine says so, "
            f"or after the quarantine bound ({bound_ms / 1_000:g} s)"
        )
    else:
        output.console().print("[bold green]released[/bold green]")
