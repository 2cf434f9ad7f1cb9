"""What commands that talk to a service share: `--target`, `--timeout`, and how a node is drawn."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from typing import TYPE_CHECKING, Any

import click

from hisparse_svc.cli import options, output
from hisparse_svc.errors import Gathered, InvalidInput, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from google.protobuf.message import Message
    from rich.table import Table

    from hisparse_svc.client import Client
    from hisparse_svc.fleet import Fleet
    from hisparse_svc.rpc.tls import Tls
    from hisparse_svc.rpc.values import Capacity

MOST_S = 1e9
"""Longest time that any flag may say; what a command or the service bounds further says so itself."""

LENGTH = "--length"

READY_REST_S = 0.05
"""Between two looks at a service that is not ready."""

UNITS = {
    "host_pages": "pages",
    "seats": "hot buffers",
    "indexer_tokens": "tokens",
    "request_slots": "requests",
    "window_tokens": "tokens",
}


CERTIFICATES = "hisparse_svc.certificates"
"""Where a command's context keeps what its flags say of certificates."""


ONE = "unix:PATH or HOST:PORT.  [HISPARSE_TARGET, else the socket that `serve` makes]"
SEVERAL = (
    "Nodes: a list such as unix:PATH,HOST:PORT, file:PATH, dns:HOST:PORT, kubernetes:NAMESPACE/SERVICE:PORT or "
    "kubernetes-nodes:NAMESPACE.  "
    "[HISPARSE_TARGET, else the socket that `serve` makes]"
)


def target(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--target`, `--timeout`, and flags of certificates, which its context keeps."""
    return _with_flags(command, ONE)


def targets(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the same flags, where `--target` names several nodes."""
    return _with_flags(command, SEVERAL)


def _with_flags(command: Callable[..., Any], where: str) -> Callable[..., Any]:
    @functools.wraps(command)
    def with_certificates(
        *args: Any, ca: str | None, cert: str | None, key: str | None, server_name: str | None, **kwargs: Any
    ) -> Any:
        click.get_current_context().meta[CERTIFICATES] = (ca, cert, key, server_name)
        return command(*args, **kwargs)

    timeout = options.flag("--timeout", "S", "Longest a call may take, in seconds.  [10]")
    flags = [
        options.flag("--target", "TARGET", where),
        timeout,
        options.flag("--ca", "FILE.pem", "Authority of the service's certificate, over TLS.  [HISPARSE_CA]"),
        options.flag("--cert", "FILE.pem", "Certificate to show the service.  [HISPARSE_CERT]"),
        options.flag("--key", "FILE.pem", "Its key.  [HISPARSE_KEY]"),
        options.flag(
            "--server-name",
            "NAME",
            "Name in the service's certificate, where it is not the target's.  [HISPARSE_SERVER_NAME]",
        ),
    ]
    with_flags: Callable[..., Any] = with_certificates
    for flag in reversed(flags):
        with_flags = flag(with_flags)
    return with_flags


def connect(target: str | None, timeout: str | None) -> Client:
    """Open a client as the flags say.

    Raises:
        InvalidInput: A flag cannot be read, or a variable with our prefix is none that we know.
    """
    from hisparse_svc.client import Client  # noqa: PLC0415 - grpc takes longer to import than other commands to run

    found = Gathered()
    timeout_s, certificates = _dialling(found, timeout)
    client = found.read(Client, target, timeout_s=timeout_s, tls=certificates)
    found.end()
    assert client is not None  # noqa: S101 - nothing was found, so it was made
    return client


def _dialling(found: Gathered, timeout: str | None) -> tuple[float, Tls | None]:
    """Read what both kinds of client take: the deadline of a call and certificates, and the environment beside them."""
    from hisparse_svc import config  # noqa: PLC0415 - as above
    from hisparse_svc.rpc import calls, tls  # noqa: PLC0415 - as above

    found.read(config.check_environment)
    given = calls.TIMEOUT_S if timeout is None else options.literal(timeout)
    timeout_s = found.read(calls.timeout, given, "--timeout") or calls.TIMEOUT_S
    certificates = found.read(tls.of_flags, *click.get_current_context().meta[CERTIFICATES])
    return timeout_s, certificates


def until_ready(client: Client, wait_s: float) -> None:
    """Return when a service is there and grants, or after so many seconds; why it was not, the next call says."""
    from hisparse_svc.rpc import calls, health  # noqa: PLC0415 - as above
    from hisparse_svc.rpc.refusals import Unreachable  # noqa: PLC0415 - as above

    call, end = health.ready(), time.monotonic() + wait_s
    while (left_s := end - time.monotonic()) > 0:
        with contextlib.suppress(Unreachable):
            if call.read(client.send(call, timeout_s=max(left_s, calls.SHORTEST_S), tries=1)):
                return
        time.sleep(READY_REST_S)


def connect_fleet(target: str | None, timeout: str | None, lengths: Iterable[int], found: Gathered) -> Fleet:
    """Open a fleet as the flags say; `found` is what is wrong with the others.

    Raises:
        InvalidInput: As `connect`, and what was found.
    """
    from hisparse_svc.fleet import Fleet  # noqa: PLC0415 - as above
    from hisparse_svc.rpc import target as targets  # noqa: PLC0415 - as above

    timeout_s, certificates = _dialling(found, timeout)
    nodes = target or os.environ.get(targets.VARIABLE) or targets.resolve(None).address
    fleet = found.read(Fleet, nodes, timeout_s=timeout_s, tls=certificates, lengths=lengths)
    if fleet is not None and found.problems:
        fleet.close()
    found.end()
    assert fleet is not None  # noqa: S101 - nothing was found, so it was made
    return fleet


def emit(message: Message) -> None:
    """Print a response as the one JSON document."""
    from hisparse_svc.rpc.plain import to_plain  # noqa: PLC0415 - as above

    output.emit_json(to_plain(message))


def seconds(flag: str, text: str | None, default: float, *, zero: bool = True) -> float:
    """Read a flag that is a length of time; of none at all only with `zero`.

    Raises:
        InvalidInput: It is none, negative, or beyond `MOST_S`.
    """
    if text is None:
        return default
    value = options.literal(text)
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else -1
    if not 0 <= number <= MOST_S or (number == 0 and not zero):
        rule = f"must be a length of time, {'from' if zero else 'above'} 0 to {MOST_S:,.0f}"
        raise InvalidInput([Problem(flag, f'"{text[:40]}"', rule, "write 30 or 0.5")])
    return float(number)


def show_capacity(seen: Capacity) -> None:
    """Print a node's capacity for people."""
    screen = output.console()
    state = "  [yellow]draining: grants nothing new[/yellow]" if seen.draining else ""
    screen.print(f"epoch {seen.epoch}, sequence {seen.sequence}, {seen.observed_at:%Y-%m-%d %H:%M:%S.%f} UTC{state}")
    screen.print(pools(seen))
    grant, longest = output.count(seen.largest_grant_tokens), output.count(seen.max_request_tokens)
    screen.print(f"\nlargest grant now: [bold]{grant}[/bold] tokens; longest request ever: {longest} tokens")
    if seen.quotas:
        drawn = output.table("tenant's part of", "in use", "kept for it", "at most", left=["tenant's part of"])
        for quota in seen.quotas:
            most = "-" if quota.ceiling is None else f"{quota.ceiling:,}"
            drawn.add_row(output.shown(quota.pool), f"{quota.used:,}", f"{quota.floor:,}", most)
        screen.print()
        screen.print(drawn)
    if seen.fits:
        drawn = output.table("length", "fit now", "limited by", "the next gets", left=["limited by", "the next gets"])
        for fit in seen.fits:
            limit, reason = output.shown(fit.binding) or "-", output.shown(fit.reason) or "-"
            drawn.add_row(f"{fit.tokens:,}", f"[bold]{fit.count:,}[/bold]", limit, reason)
        screen.print()
        screen.print(drawn)


def pools(seen: Capacity) -> Table:
    """Draw the pools; parts that are zero everywhere are left out."""
    parts = ["free", "reserved", "committed", "evictable", "scrubbing", "quarantined"]
    shown = [part for part in parts if part in parts[:3] or any(getattr(pool, part) for pool in seen.pools)]
    drawn = output.table("pool", *shown, "total", "unit", left=["pool", "unit"])
    for pool in seen.pools:
        called = output.shown(pool.name)
        name = called if pool.numa_node is None else f"{called} (NUMA {pool.numa_node})"
        drawn.add_row(
            name, *(f"{getattr(pool, part):,}" for part in shown), f"{pool.total:,}", UNITS.get(pool.name, "")
        )
    return drawn


def whole(flag: str, value: Any) -> int | None:
    """Read a flag that is a positive count.

    Raises:
        InvalidInput: It is none.
    """
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise InvalidInput([Problem(flag, str(value), "must be a whole number above 0", "write digits only")])


def lengths(found: Gathered, given: Iterable[Any], always: Iterable[int] = ()) -> list[int]:
    """Read `--length`, given any number of times, behind those that are `always` asked about; keep what is wrong."""
    from hisparse_svc.rpc import calls  # noqa: PLC0415 - as above

    asked = list(always)
    besides = f" with the {len(asked)} that are always told, {', '.join(map(str, asked))}" if asked else ""
    asked += [number for each in given if (number := found.read(whole, LENGTH, each))]
    return found.read(calls.lengths_asked, dict.fromkeys(asked), LENGTH, besides) or []


def digest(text: str) -> bytes:
    """Read a page's hash.

    Raises:
        InvalidInput: It is no hexadecimal text; its length is the service's to judge.
    """
    try:
        return bytes.fromhex(text)
    except ValueError:
        problem = Problem("--prefix-hash", f'"{text[:40]}"', "must be hexadecimal digits", "write 64 of them")
        raise InvalidInput([problem]) from None
