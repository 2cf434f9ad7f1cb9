"""Running cases against one service."""

from __future__ import annotations

import fnmatch
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import grpc

from hisparse_svc.conformance.case import CASES, Case
from hisparse_svc.conformance.demands import Broken, Skipped
from hisparse_svc.conformance.report import Report, Result
from hisparse_svc.conformance.server import Server
from hisparse_svc.conformance.wire import Refused, Wire
from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.rpc.channel import options
from hisparse_svc.rpc.refusals import Unreachable
from hisparse_svc.rpc.target import resolve
from hisparse_svc.rpc.tls import resolve as certificates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hisparse_svc.rpc.target import Target
    from hisparse_svc.rpc.tls import Tls


def chosen(only: Iterable[str]) -> list[Case]:
    """Give the cases whose names match one of the patterns; all where there is none.

    Raises:
        InvalidInput: A pattern matches no case.
    """
    patterns = list(only)
    for pattern in patterns:
        if not fnmatch.filter(CASES, pattern):
            remedy = "write a case's name, or a pattern such as `admit.*`; --list shows them"
            raise InvalidInput([Problem("--only", f'"{pattern[:80]}"', "matches no case", remedy)])
    return [
        found for name, found in CASES.items() if not patterns or any(fnmatch.fnmatch(name, each) for each in patterns)
    ]


def run(
    target: str | None = None,
    *,
    tls: Tls | None = None,
    tenant: str = "",
    destructive: bool = False,
    only: Iterable[str] = (),
    told: Callable[[Result], None] | None = None,
) -> Report:
    """Run the suite against a service.

    Args:
        target: `unix:PATH` or `HOST:PORT`; by default `HISPARSE_TARGET`, else the socket that `serve` makes.
        tls: Certificates, for a service beyond this machine; by default those that the environment names.
        tenant: Tenant to run under, for callers that are held to one. Nobody else may be using it: whatever it holds
            when a case is over is released.
        destructive: Also run what disturbs other callers: Drain.
        only: Names or patterns (`admit.*`) of the cases to run; all where none is given.
        told: Called with each result as it comes.

    Returns:
        What was found. The service holds nothing for this run any more.

    Raises:
        InvalidInput: A pattern or the target cannot be read.
        Unreachable: Nothing answers there, or not as a service of this interface.
    """
    cases, where = chosen(only), resolve(target)
    channel = _channel(where, certificates(tls, where))
    try:
        try:
            server = Server(Wire(channel), tenant=tenant, destructive=destructive)
            _check_unused(server)
        except Refused as refused:
            raise Unreachable(f"no service to test at {where}: {refused}; start one, or name another target") from None
        report = Report(str(where), epoch=server.epoch, started_at=datetime.now(UTC).isoformat(timespec="seconds"))
        if server.info is not None:
            report.version, report.model, report.backing = server.info.version, server.info.model, server.info.backing
        begun = time.monotonic()
        lost_in = ""
        for each in cases:
            if lost_in:
                message = f"the service went away in {lost_in}"
                report.results.append(Result(each.name, each.rule, each.text, "error", 0.0, message))
            else:
                report.results.append(_shown(each, server))
                lost_in = each.name if report.results[-1].outcome == "failed" and _gone(server) else ""
            if told is not None:
                told(report.results[-1])
        report.seconds = round(time.monotonic() - begun, 3)
        return report
    finally:
        channel.close()


def _check_unused(server: Server) -> None:
    leases = server.call("ListLeases", tenant=server.tenant).leases
    if leases:
        rule = f"holds {len(leases)} leases or more, which the run would release"
        raise InvalidInput([Problem("--tenant", f'"{server.tenant}"', rule, "name a tenant that nobody uses")])


def _channel(where: Target, tls: Tls | None) -> grpc.Channel:
    if tls is None:
        return grpc.insecure_channel(where.address, options(where))
    return grpc.secure_channel(where.address, tls.credentials(), options(where))


def _gone(server: Server) -> bool:
    try:
        server.wire.call("GetCapacity")
    except Refused as refused:
        return refused.code is grpc.StatusCode.UNAVAILABLE and not refused.reason
    return False


def _shown(case: Case, server: Server) -> Result:
    begun = time.monotonic()
    outcome, message = _outcome(case, server)
    ms = round((time.monotonic() - begun) * 1000, 3)
    return Result(case.name, case.rule, case.text, outcome, ms, message)


def _outcome(case: Case, server: Server) -> tuple[str, str]:
    found, message = _tried(case, server)
    if found == "failed" and "idle" in case.needs and not _gone(server) and server.others_are_here():
        return "skipped", f"others used the node meanwhile, so this says nothing: {message}"
    return found, message


def _tried(case: Case, server: Server) -> tuple[str, str]:
    found, message = "passed", ""
    try:
        missing = server.missing(case.needs)
        if missing:
            return "skipped", missing
        case.show(server)
    except Skipped as reason:
        found, message = "skipped", str(reason)
    except (Broken, Refused) as failure:
        may_not = isinstance(failure, Refused) and failure.reason in ("WRONG_ROLE", "WRONG_TENANT")
        found, message = "skipped" if may_not else "failed", str(failure)
    except Exception as failure:  # a defect of the case must not hide what the other cases find
        found, message = "error", f"the case broke off: {type(failure).__name__}: {failure}"
    try:
        server.clean_up()
        if "idle" in case.needs:
            server.check_nothing_held()
    except (Broken, Refused) as failure:
        if found in ("passed", "skipped"):
            found, message = "failed", str(failure)
    return found, message
