"""`hisparse-svc drain`: grant nothing new."""

from __future__ import annotations

import click

from hisparse_svc.cli import options, output, remote

STILL_HELD = 6
"""Exit code where `--wait` ended before the leases did: a script that upgrades next must not go on."""


@click.command("drain")
@click.option("--resume", is_flag=True, help="Undo it: grant again.")
@options.flag("--wait", "S", "Return when nothing is held any more, or after so many seconds.  [0]")
@remote.target
@options.common
def command(resume: bool, wait: str | None, target: str | None, timeout: str | None, as_json: bool) -> None:
    """Stop granting anything new; what is held stays held. Repeating it changes nothing.

    With --wait the exit code is 0 once nothing is held, and 6 where something still is when the time is over.
    """
    from hisparse_svc.rpc import calls  # noqa: PLC0415 - as in `remote`

    wait_s = remote.seconds("--wait", wait, 0.0)
    call = calls.drain(resume=resume, wait_s=wait_s)
    with remote.connect(target, timeout) as client:
        answer = client.send(call)
    leases = call.read(answer).leases
    if as_json:
        remote.emit(answer)
    else:
        held = "one lease is" if leases == 1 else f"{leases:,} leases are"
        state = "[bold green]granting[/bold green]" if resume else "[bold yellow]draining[/bold yellow]"
        output.console().print(f"{state}: {held} still held")
    if wait_s > 0 and leases > 0 and not resume:
        raise click.exceptions.Exit(STILL_HELD)
