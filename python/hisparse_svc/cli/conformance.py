"""`hisparse-svc conformance`: whether a service keeps the promises of the interface."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hisparse_svc.cli import options, output

if TYPE_CHECKING:
    from hisparse_svc.conformance import Case, Report, Result

BROKEN = 5
"""Exit code where the service breaks a rule; one of its own, so that CI tells it from a service that is not there."""

MARKS = {"passed": "[green]ok[/green]  ", "failed": "[red]FAIL[/red]", "error": "[red]ERR [/red]", "skipped": "skip"}


@click.command("conformance")
@click.argument("target", required=False)
@options.flag("--only", "NAME", "Run these cases alone: names, or patterns such as `admit.*`.", many=True)
@click.option("--list", "listed", is_flag=True, help="List the cases, and run none.")
@click.option("--destructive", is_flag=True, help="Also run what disturbs other callers of the node: Drain.")
@options.flag("--tenant", "NAME", "Run under this tenant, which nobody else uses, where the caller is held to one.")
@options.flag("--out", "FILE", "Write the report as JSON to a file.")
@options.flag("--junit", "FILE", "Write the report as JUnit XML to a file.")
@options.flag("--ca", "FILE.pem", "Authority of the service's certificate, over TLS.  [HISPARSE_CA]")
@options.flag("--cert", "FILE.pem", "Certificate to show the service.  [HISPARSE_CERT]")
@options.flag("--key", "FILE.pem", "Its key.  [HISPARSE_KEY]")
@options.common
def command(
    target: str | None,
    *,
    only: tuple[str, ...],
    listed: bool,
    tenant: str | None,
    destructive: bool,
    out: str | None,
    junit: str | None,
    ca: str | None,
    cert: str | None,
    key: str | None,
    as_json: bool,
) -> None:
    """Say whether the service at TARGET keeps the promises of the interface: exit code 0, or 5 where it breaks one.

    It runs under tenants of its own, releases all it takes, and drains nothing without --destructive. Cases about a
    full node run only where nobody else holds anything.
    """
    from hisparse_svc import conformance  # noqa: PLC0415 - grpc takes longer to import than other commands to run
    from hisparse_svc.conformance.run import chosen  # noqa: PLC0415 - as above
    from hisparse_svc.rpc.tls import of_flags  # noqa: PLC0415 - as above

    if listed:
        show_cases(chosen(only), as_json=as_json)
        return
    told = None if as_json else show_result
    tls = of_flags(ca, cert, key)
    report = conformance.run(target, tls=tls, tenant=tenant or "", destructive=destructive, only=only, told=told)
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


def show_cases(cases: list[Case], *, as_json: bool) -> None:
    """Print the rules, and the cases that show them."""
    from hisparse_svc.conformance import RULES  # noqa: PLC0415 - as above

    if as_json:
        shown = [{"name": case.name, "rule": case.rule, "needs": case.needs, "text": case.text} for case in cases]
        output.emit_json({"rules": RULES, "cases": shown})
        return
    screen = output.console()
    rules = output.table("rule", "promise", left=["rule", "promise"])
    for rule, promise in RULES.items():
        rules.add_row(rule, output.shown(promise))
    screen.print(rules)
    for case in cases:
        screen.print(f"[bold]{output.shown(case.name)}[/bold]  ({', '.join([case.rule, *case.needs])})")
        screen.print(f"    {output.shown(case.text)}")


def show_result(result: Result) -> None:
    """Print one result as it comes."""
    told = f"\n       {output.shown(result.message)}" if result.message else ""
    output.console().print(f"{MARKS[result.outcome]} {output.shown(result.name)}  {result.ms:,.0f} ms{told}")


def show_summary(report: Report) -> None:
    """Print how it went."""
    counts = ", ".join(f"{count} {outcome}" for outcome, count in report.counts().items() if count)
    verdict = "[green]conforms[/green]" if report.conforms else "[red]does not conform[/red]"
    output.console().print(f"\n{output.shown(report.target)} {verdict}: {counts}, in {report.seconds:.1f} s")
