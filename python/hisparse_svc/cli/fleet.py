"""`hisparse-svc fleet`: many nodes side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hisparse_svc.cli import options, output, remote

if TYPE_CHECKING:
    from hisparse_svc.fleet import NodeView
    from hisparse_svc.rpc.values import Capacity

LENGTHS = (8_192, 32_768, 131_072)
"""Lengths that are answered where none is asked about."""

LENGTH = "Say how many more requests of N tokens fit on each node; may be repeated.  [8192, 32768, 131072]"


@click.command("fleet")
@options.flag("--length", "N", LENGTH, many=True)
@remote.targets
@options.common
def command(*, length: tuple[Any, ...], target: str | None, timeout: str | None, as_json: bool) -> None:
    """Say what many nodes have: which answer, what fits where, and how old that is by this machine's clock.

    A router's picture of them, taken once. Which node a request would go to is decided when it is admitted.
    """
    lengths = [each for each in length if remote.whole("--length", each)] or list(LENGTHS)
    with remote.connect_fleet(target, timeout, lengths) as fleet:
        fleet.wait_until_seen()
        fleet.check()
        nodes = fleet.nodes()
    if as_json:
        output.emit_json({"nodes": [_document(node) for node in nodes], "fits": _sums(nodes, lengths)})
    else:
        _show(nodes, lengths)


def _document(node: NodeView) -> dict[str, Any]:
    seen = node.capacity
    known = {} if seen is None else _known(seen)
    age_ms = None if node.age_s is None else round(node.age_s * 1_000)
    return {
        "name": node.name,
        "target": node.target,
        "state": node.state,
        "age_ms": age_ms,
        "failure": node.failure or None,
        **known,
    }


def _known(seen: Capacity) -> dict[str, Any]:
    return {
        "epoch": seen.epoch,
        "sequence": seen.sequence,
        "free": {pool.name: _room(seen, pool.name) for pool in seen.pools},
        "largest_grant_tokens": seen.largest_grant_tokens,
        "max_request_tokens": seen.max_request_tokens,
        "fits": [{"tokens": fit.tokens, "count": fit.count, "binding": fit.binding} for fit in seen.fits],
    }


def _room(seen: Capacity, name: str) -> int:
    pool = seen.pool(name)
    return pool.free + pool.evictable + pool.scrubbing


def _counts(node: NodeView, lengths: list[int]) -> list[int]:
    """How many of each length; none where nothing is granted: asked nodes that drain or are silent take nothing."""
    if node.capacity is None or node.state == "silent":
        return [0] * len(lengths)
    counts = {fit.tokens: fit.count for fit in node.capacity.fits}
    return [counts.get(length, 0) for length in lengths]


def _sums(nodes: list[NodeView], lengths: list[int]) -> list[dict[str, int]]:
    counted = [_counts(node, lengths) for node in nodes]
    return [
        {
            "tokens": length,
            "count": sum(counts[place] for counts in counted),
            "nodes": sum(counts[place] > 0 for counts in counted),
        }
        for place, length in enumerate(lengths)
    ]


def _show(nodes: list[NodeView], lengths: list[int]) -> None:
    columns = ("node", "state", "age", "seats free", "pages free", "largest grant")
    words = [f"fit {_short(length)}" for length in lengths]
    lines = []
    for node in nodes:
        seen = node.capacity
        age = "-" if node.age_s is None else f"{node.age_s:.1f} s"
        if seen is None:
            figures = ["-"] * (3 + len(lengths))
        else:
            room = [_room(seen, name) for name in ("seats", "host_pages")]
            figures = [f"{count:,}" for count in (*room, seen.largest_grant_tokens, *_counts(node, lengths))]
        lines.append([output.plain(node.name), node.state, age, *figures])
    total = [f"{entry['count']:,}" for entry in _sums(nodes, lengths)]
    lines.append(["all", "", "", "", "", "", *total])
    output.rows(*columns, *words, lines=lines, right=(*columns[2:], *words))
    for node in nodes:
        if node.failure:
            click.echo(f"{output.plain(node.name)}: {output.plain(node.failure)}", err=True)


def _short(tokens: int) -> str:
    return f"{tokens // 1_024}K" if tokens % 1_024 == 0 else f"{tokens:,}"
