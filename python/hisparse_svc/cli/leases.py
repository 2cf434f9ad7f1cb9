"""`hisparse-svc leases`: who holds what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hisparse_svc.cli import options, output, remote

if TYPE_CHECKING:
    from hisparse_svc.rpc.values import Lease


@click.command("leases")
@options.flag("--tenant", "T", "Only this tenant's.")
@remote.target
@options.common
def command(tenant: str | None, target: str | None, timeout: str | None, as_json: bool) -> None:
    """List the live leases, in order of their grant."""
    from hisparse_svc.rpc import calls  # noqa: PLC0415 - as in `remote`
    from hisparse_svc.rpc.plain import to_plain  # noqa: PLC0415 - as in `remote`

    documents: list[dict[str, Any]] = []
    leases: list[Lease] = []
    token = ""
    with remote.connect(target, timeout) as client:
        while True:
            call = calls.list_leases(tenant or "", token)
            answer = client.send(call)
            documents += [to_plain(lease) for lease in answer.leases]
            page = call.read(answer)
            leases += page.leases
            token = page.next_page_token
            if not token:
                break
    if as_json:
        output.emit_json({"leases": documents})
        return
    if not leases:
        click.echo("no live leases")
        return
    output.rows(
        "lease",
        "request",
        "tenant",
        "state",
        "tokens",
        "pages",
        "shared",
        "ends",
        right=("tokens", "pages", "shared"),
        names=("request", "tenant"),  # the lease is what `release` takes
        lines=(
            (
                *map(output.plain, (lease.id, lease.request_id, lease.tenant)),
                str(lease.state),
                *(f"{number:,}" for number in (lease.tokens, lease.pages, lease.shared_pages)),
                "with its engine" if lease.expires_at is None else f"{lease.expires_at:%H:%M:%S} UTC",
            )
            for lease in leases
        ),
    )
