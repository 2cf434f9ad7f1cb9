"""`hisparse-svc fleet`: many nodes side by side."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from hisparse_svc.cli import options, output, remote
from hisparse_svc.errors import Gathered

if TYPE_CHECKING:
    from hisparse_svc.fleet import Hint, NodeView
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

    Seats and pages are those that can be had now; the largest is the longest request that would be granted, in tokens.

    A router's picture of them, taken once. Which node a request would go to is decided when it is admitted. Of a node
    that does not answer here, figures in brackets are what its directory says it had.
    """
    found = Gathered()
    lengths = remote.lengths(found, length) or list(LENGTHS)
    with remote.connect_fleet(target, timeout, lengths, found) as fleet:
        fleet.wait_until_seen()
        nodes = fleet.nodes()
        if any(node.hint is not None for node in nodes):  # such a directory has no order of its own, as a list has
            nodes.sort(key=lambda node: node.name)
        if not any(node.hint is not None and node.hint.capacity is not None for node in nodes):
            fleet.check()  # where a directory says what nodes have, that is a picture too
    if as_json:
        output.emit_json({"nodes": [_document(node) for node in nodes], "fits": _sums(nodes, lengths)})
    else:
        _show(nodes, lengths)


def _document(node: NodeView) -> dict[str, Any]:
    seen, hint = node.capacity, node.hint
    known = {} if seen is None else _known(seen)
    age_ms = None if node.age_s is None else round(node.age_s * 1_000)
    if hint is not None:
        said = {} if hint.capacity is None else _known(hint.capacity)
        known["directory"] = {"state": hint.state, "stale": hint.stale, "age_ms": _age_ms(hint), **said}
    return {
        "name": node.name,
        "target": node.target,
        "state": node.state,
        "age_ms": age_ms,
        "failure": node.failure or None,
        **known,
    }


def _age_ms(hint: Hint) -> int:
    return round((time.monotonic() - hint.heard_at) * 1_000)


def _known(seen: Capacity) -> dict[str, Any]:
    return {
        "epoch": seen.epoch,
        "sequence": seen.sequence,
        "free": {pool.name: _room(seen, pool.name) for pool in seen.pools},
        "largest_grant_tokens": seen.largest_grant_tokens,
        "max_request_tokens": seen.max_request_tokens,
        "fits": [
            {"tokens": fit.tokens, "count": fit.count, "binding": fit.binding, "reason": fit.reason or None}
            for fit in seen.fits
        ],
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
    told = any(node.hint is not None for node in nodes)
    columns = ("node", "state", "age", *(("directory",) if told else ()), "seats", "pages", "largest")
    words = [f"fit {_short(length)}" for length in lengths]
    lines = []
    for node in nodes:
        age = "-" if node.age_s is None else f"{node.age_s:.1f} s"
        directory = [_word(node)] if told else []
        lines.append([output.plain(node.name), node.state, age, *directory, *_figures(node, lengths)])
    total = [f"{entry['count']:,}" for entry in _sums(nodes, lengths)]
    lines.append(["all", *[""] * (len(columns) - 1), *total])
    output.rows(*columns, *words, lines=lines, right=(*columns[2:], *words), names=("node",))
    for node in nodes:
        if node.failure:
            click.echo(f"{output.plain(node.name)}: {output.plain(node.failure)}", err=True)


def _figures(node: NodeView, lengths: list[int]) -> list[str]:
    """Give what a node has: by its own word, else, in brackets, by its directory's."""
    seen, hint = node.capacity, node.hint
    said = hint.capacity if seen is None and hint is not None else None
    if seen is not None:
        counts, shown = _counts(node, lengths), "{:,}"
    elif said is not None:
        known = {fit.tokens: fit.count for fit in said.fits}
        counts, shown, seen = [known.get(length, 0) for length in lengths], "({:,})", said
    else:
        return ["-"] * (3 + len(lengths))
    room = [_room(seen, name) for name in ("seats", "host_pages")]
    return [shown.format(count) for count in (*room, seen.largest_grant_tokens, *counts)]


def _word(node: NodeView) -> str:
    """Give the directory's word for a node, and how old it is."""
    hint = node.hint
    if hint is None:
        return "-"
    age = "" if hint.state == "unknown" else f" {_age_ms(hint) / 1_000:.0f} s"  # it was never written
    return f"{'stale, ' if hint.stale else ''}{hint.state}{age}"


def _short(tokens: int) -> str:
    return f"{tokens // 1_024}K" if tokens % 1_024 == 0 else f"{tokens:,}"
