"""`hisparse-svc admit`: reserve what one request needs."""

from __future__ import annotations

from typing import Any

import click

from hisparse_svc.cli import options, output, remote
from hisparse_svc.errors import Gathered, Problem


@click.command("admit")
@options.flag("--prompt-tokens", "N", "Tokens of the prompt.")
@options.flag("--max-new-tokens", "N", "Most tokens it may produce; the whole length is reserved.")
@options.flag("--generated-tokens", "N", "Tokens already produced on another node.")
@options.flag("--pages", "N", "Host pages, instead of tokens.")
@options.flag("--request-id", "ID", "Your name for it; the same name gives the same lease.  [a random one]")
@options.flag("--tenant", "T", "Whose quota it counts against.  [default]")
@options.flag("--priority", "N", "From -100 to 100; larger goes first among those that wait.  [0]")
@options.flag("--ttl", "S", "Life without commit, in seconds.  [30]")
@options.flag("--wait", "S", "Longest wait for room, in seconds.  [0]")
@options.flag("--prefix-hash", "HEX", "Hash of a full page of the prompt, 64 hex digits; in order.", many=True)
@options.flag("--epoch", "N", "Refuse unless the pool has this epoch.")
@click.option("--validate-only", is_flag=True, help="Say what would be answered, and reserve nothing.")
@remote.target
@options.common
def command(
    *,
    ttl: str | None,
    wait: str | None,
    prefix_hash: tuple[str, ...],
    epoch: Any,
    validate_only: bool,
    target: str | None,
    timeout: str | None,
    as_json: bool,
    **counts: Any,
) -> None:
    """Reserve everything one request needs, or say why not (exit code 4).

    The lease outlives this command: release it, or it ends after --ttl.
    """
    from hisparse_svc.rpc import calls, values  # noqa: PLC0415 - as in `remote`

    found = Gathered()
    if not {"prompt_tokens", "pages"} & options.given(counts).keys():
        problem = Problem("--prompt-tokens", "missing", "says how long the request is", "give it, or --pages")
        found.problems.append(problem)
    hashes = [found.read(remote.digest, text) or b"" for text in prefix_hash]
    ttl_s = None if ttl is None else found.read(remote.seconds, "--ttl", ttl, 0.0, zero=False)
    wait_s = found.read(remote.seconds, "--wait", wait, 0.0) or 0.0
    request = values.Request(prefix_hashes=hashes, ttl_s=ttl_s, **options.given(counts))
    call = found.read(calls.admit, request, wait_s=wait_s, validate_only=validate_only, epoch=epoch or 0)
    client = found.read(remote.connect, target, timeout)
    found.end()
    assert call is not None  # noqa: S101 - nothing was found, so both were read
    assert client is not None  # noqa: S101 - as above
    with client:
        answer = client.send(call)
    if as_json:
        remote.emit(answer)
        return
    admission = call.read(answer)
    lease, screen = admission.lease, output.console()
    if validate_only:
        screen.print(f"[bold green]would be granted[/bold green]: {lease.pages:,} pages, {lease.shared_pages:,} shared")
        return
    again = ", granted before under this request id" if admission.repeated_request else ""
    screen.print(f"[bold green]granted[/bold green] lease [bold]{output.shown(lease.id)}[/bold]{again}")
    ends = "with its engine" if lease.expires_at is None else f"{lease.expires_at:%H:%M:%S} UTC unless committed"
    extents = ", ".join(f"{extent.first_page}+{extent.page_count}" for extent in lease.extents[:8])
    more = ", …" if len(lease.extents) > 8 else ""
    request_id, tenant = output.shown(lease.request_id), output.shown(lease.tenant)
    screen.print(f"request {request_id}, tenant {tenant}, epoch {lease.epoch}, ends {ends}")
    screen.print(f"{lease.tokens:,} tokens in {lease.pages:,} pages ({lease.shared_pages:,} shared): {extents}{more}")
    screen.print(remote.pools(admission.capacity))
