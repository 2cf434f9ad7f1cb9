"""`hisparse-svc doctor`: what this machine can do."""

from __future__ import annotations

from dataclasses import asdict

import click

from hisparse_svc import _core
from hisparse_svc.cli import options, output
from hisparse_svc.doctor import examine

MARKS = {"ok": "[green]ok[/green]", "note": "[yellow]note[/yellow]", "unknown": "[magenta]unknown[/magenta]"}


@click.command("doctor")
@options.flag("--assume-memory", "SIZE", "Go by this much memory instead of what the machine reports.")
@options.common
def command(assume_memory: str | None, as_json: bool) -> None:
    """Say what this machine can do, what it means, and how to make it do more. Never fails."""
    assumed = None if assume_memory is None else _core.parse_size(assume_memory, "--assume-memory")
    checks = examine(assumed)
    if as_json:
        output.emit_json({"checks": [asdict(check) for check in checks], "machine": _core.machine(assumed)})
        return
    from rich.markup import escape  # noqa: PLC0415 - as `output.console`

    drawn = output.table("", "subject", "found, and what it means", left=["", "subject", "found, and what it means"])
    for check in checks:
        told = f"{escape(check.found)}\n[dim]{escape(check.meaning)}[/dim]"
        if check.remedy and check.state != "ok":
            told += f"\nto change it: {escape(check.remedy)}"
        drawn.add_row(MARKS[check.state], f"[bold]{check.name}[/bold]", told)
    output.console().print(drawn)
