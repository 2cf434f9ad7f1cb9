"""`hisparse-svc conformance`: whether a service keeps the promises of the interface."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hisparse_svc.cli import options, output

if TYPE_CHECKING:
    from hisparse_svc.conformance import Report, Result

BROKEN = 5
"""Exit code where the service breaks a rule; one of its own, so that CI tells it from a service that is not there."""

MARKS = {"passed": "[green]ok[/green]  ", "failed": "[red]FAIL[/red]", "error": "[red]ERR [/red]", "skipped": "skip"}


@click.command("conformance")
@click.argument("target", required=False)
@options.flag("--only", "NAME", "Run these cases alone: names, or patterns such as `admit.*`.", many=True)
@click.option("--list", "listed", is_flag=True, help="List the cases, and run none.")
@click.option("--destructive", is_flag=True, help="Also run what disturbs other callers of the node: Drain.")
@options.flag("--out", "FILE", "Write the report as JSON to a file.")
@options.flag("--junit", "FILE", "Write the report as JUnit XML to a file.")
@options.flag("--tls-ca", "FILE", "Speak TLS; certificates that vouch for the service.")
@options.flag("--tls-cert", "FILE", "Speak TLS; this caller's certificate.")
@options.flag("--tls-key", "FILE", "Private key of --tls-cert.")
@options.flag("--tls-name", "NAME", "Name in the service's certificate, where it is not the target's.")
@options.common
def command(
    target: str | None,
    *,
    only: tuple[str, ...],
    listed: bool,
    destructive: bool,
    out: str | None,
    junit: str | None,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    tls_name: str | None,
    as_json: bool,
) -> None:
    """Say whether the service at TARGET keeps the promises of the interface: exit code 0, or 5 where it breaks one.

    It runs under tenants of its own, releases all it takes, and drains nothing without --destructive. Cases about a
    full node run only where nobody else holds anything.
    """
    from hisparse_svc import conformance  # noqa: PLC0415 - grpc takes longer to import than other commands to run
    from hisparse_svc.conformance.run import chosen  # noqa: PLC0415 - as above

    if listed:
        show_cases([(case.name, case.rule, case.text) for case in chosen(only)], as_json=as_json)
        return
    files = {
        flag: Path(os.fsdecode(path)) for flag, path in (("ca", tls_ca), ("cert", tls_cert), ("key", tls_key)) if path
    }
    tls = conformance.Tls(**files, server_name=tls_name or "") if files or tls_name else None
    told = None if as_json else show_result
    report = conformance.run(target, tls=tls, destructive=destructive, only=only, told=told)
    if out:
        Path(out).write_text(output.json_text(report.document()) + "\n", encoding="utf-8")
    if junit:
        Path(junit).write_text(report.junit(), encoding="utf-8")
    if as_json:
        output.emit_json(report.document())
    else:
        show_summary(report)
    if not report.conforms:
        raise click.exceptions.Exit(BROKEN)


def show_cases(cases: list[tuple[str, str, str]], *, as_json: bool) -> None:
    """Print the cases."""
    if as_json:
        output.emit_json({"cases": [{"name": name, "rule": rule, "text": text} for name, rule, text in cases]})
        return
    drawn = output.table("case", "rule", "what it shows", left=["case", "rule", "what it shows"])
    for row in cases:
        drawn.add_row(*map(output.shown, row))
    output.console().print(drawn)


def show_result(result: Result) -> None:
    """Print one result as it comes."""
    told = f"\n       {output.shown(result.message)}" if result.message else ""
    output.console().print(f"{MARKS[result.outcome]} {output.shown(result.name)}  {result.ms:,.0f} ms{told}")


def show_summary(report: Report) -> None:
    """Print how it went."""
    counts = ", ".join(f"{count} {outcome}" for outcome, count in report.counts().items() if count)
    verdict = "[green]conforms[/green]" if report.conforms else "[red]does not conform[/red]"
    output.console().print(f"\n{output.shown(report.target)} {verdict}: {counts}, in {report.seconds:.1f} s")
