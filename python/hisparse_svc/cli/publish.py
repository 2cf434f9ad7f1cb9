"""`hisparse-svc publish`: a node into the cluster's directory, until it is told to stop."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import click

from hisparse_svc.cli import options, output, remote
from hisparse_svc.cli.fleet import LENGTHS
from hisparse_svc.errors import Gathered, InvalidInput, Problem

if TYPE_CHECKING:
    from hisparse_svc.kube.objects import Identity


@click.command("publish")
@options.flag("--address", "HOST:PORT", "Where routers reach the node.  [POD_IP and port 7411, else --target]")
@options.flag("--namespace", "NAME", "Where its object is.  [POD_NAMESPACE]")
@options.flag("--name", "NAME", "Its object's name.  [POD_NAME]")
@options.flag("--refresh", "S", "Seconds between two writes where nothing changes much, 5 to 300; drawn ± 20 %.  [20]")
@options.flag(
    "--lease", "S", "Whole seconds after which nobody vouches for a node that is not renewed, 5 to 600.  [30]"
)
@options.flag("--length", "N", "Also say how many requests of N tokens fit; may be repeated.", many=True)
@options.flag("--http", "HOST:PORT", "Serve /metrics and /healthz there.  [off]")
@options.flag("--log", options.Words(["text", "json"]), "How lines on stderr are written.  [text]")
@remote.target
@options.common
def command(
    *,
    address: str | None,
    namespace: str | None,
    name: str | None,
    refresh: str | None,
    lease: str | None,
    length: tuple[Any, ...],
    http: str | None,
    log: str | None,
    target: str | None,
    timeout: str | None,
    as_json: bool,
) -> None:
    """Write a node's HisparseNode and Lease, so that routers find it and kubectl shows it; until SIGTERM or Ctrl-C.

    It runs beside the node, which does not know of it. The object is written every --refresh, and at once where the
    node's state changes or 5 % of what it has. Needs the extra `kubernetes`.
    """
    from hisparse_svc.kube import identity, publisher  # noqa: PLC0415 - grpc and the client of Kubernetes take long
    from hisparse_svc.kube.api import Api  # noqa: PLC0415 - as above
    from hisparse_svc.kube.following import FollowedNode  # noqa: PLC0415 - as above
    from hisparse_svc.kube.pace import LONGEST_REFRESH_S, REFRESH_S, SHORTEST_REFRESH_S  # noqa: PLC0415 - as above
    from hisparse_svc.kube.telling import Teller, serve_metrics  # noqa: PLC0415 - as above

    found = Gathered()
    longest_s, shortest_s = publisher.LONGEST_LEASE_S, publisher.SHORTEST_LEASE_S
    # The kind's columns show LENGTHS, so these are always told.
    refresh_s = found.read(_between, "--refresh", refresh, REFRESH_S, SHORTEST_REFRESH_S, LONGEST_REFRESH_S)
    lease_s = found.read(_between, "--lease", lease, publisher.LEASE_S, shortest_s, longest_s)
    lengths = sorted(remote.lengths(found, length, LENGTHS))
    as_words = found.read(_word, "--log", log or "text")
    client = found.read(remote.connect, target, timeout)
    where = "" if client is None else client.target.address
    who = found.read(identity.read, os.environ, name=name, namespace=namespace, address=address, target=where)
    api = found.read(Api)
    found.end()
    assert client is not None and who is not None and api is not None and refresh_s and lease_s  # noqa: S101, PT018 - nothing was found

    stopping, wake = threading.Event(), threading.Event()
    teller = Teller(lambda line: click.echo(line, err=True), as_json=as_words == "json")
    node = FollowedNode(client, lengths, wake.set)
    writer = publisher.Publisher(api, who, node, teller, refresh_s=refresh_s, lease_s=int(lease_s), wake=wake)

    def stop(*_: object) -> None:
        stopping.set()
        wake.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    with serve_metrics(http, teller):
        _say(who, as_json=as_json)
        writer.run(stopping)
    node.close()
    api.close()


def _say(who: Identity, *, as_json: bool) -> None:
    if as_json:
        output.emit_json({"namespace": who.namespace, "name": who.name, "address": who.address})
    else:
        click.echo(f"publishing {who.address} as HisparseNode {who.namespace}/{who.name}")


def _between(flag: str, text: str | None, default: float, least: float, most: float) -> float:
    number = remote.seconds(flag, text, default, zero=False)
    if not least <= number <= most:
        raise InvalidInput(
            [Problem(flag, f'"{text}"', f"must be from {least:g} to {most:g} seconds", f"write {default:g}")]
        )
    return number


def _word(flag: str, text: str) -> str:
    if text in ("text", "json"):
        return text
    raise InvalidInput([Problem(flag, f'"{text[:40]}"', "must be text or json", "use one of them")])
