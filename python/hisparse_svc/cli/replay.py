"""`hisparse-svc replay`: what a node takes of a trace, and what its device alone would."""

from __future__ import annotations

import json
import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from hisparse_svc.cli import options, output, remote, signals
from hisparse_svc.errors import InvalidInput, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hisparse_svc._core import Trace
    from hisparse_svc.replay.options import Options

FLEETS = ("file:", "dns:", "kubernetes:")
"""How a target begins that is a directory of nodes."""

NODE_FLAGS = ("kv_dtype", "host_pool", "ratio", "hot_rows", "gpu", "kv_bytes", "tp")


@click.command("replay")
@click.argument("trace", metavar="TRACE.jsonl")
@options.flag("--model", "MODEL", "Model of the node.  [glm-5.2]")
@options.flag("--kv-dtype", options.choices("kv_dtype"), "How main KV is stored.  [fp8_e4m3]")
@options.flag("--host-pool", "SIZE", "Size of the host pool.  [160GiB]")
@options.flag("--ratio", "R", "Logical tokens per device token, instead of --host-pool.")
@options.flag("--hot-rows", "N", "GPU rows per running request and layer.  [4096]")
@options.flag("--gpu", options.choices("gpu"), "A GPU, instead of --kv-bytes.")
@options.flag("--kv-bytes", "SIZE", "GPU memory for KV, of the node and of the device alone.  [20GiB]")
@options.flag("--tp", "N", "Tensor-parallel ranks.  [1]")
@options.flag("--max-requests", "N", "Rows of the engine's request tables.  [1024]")
@options.flag("--speed", "X", "Against --target: trace seconds per second, or max: as fast as it answers.  [max]")
@options.flag("--max-wait", "S", "A request that has waited so long is refused, in trace seconds.  [30]")
@options.flag("--decode-ms", "MS", "Time for one token, in trace milliseconds.  [50]")
@options.flag("--prefill-tps", "N", "Tokens a request prefills in a second of the trace.  [20000]")
@options.flag("--limit", "N", "Play only the first N requests.")
@click.option("--out", type=options.FileOut(), metavar="FILE", help="Save the JSON document.")
@click.option("--plot", type=options.FileOut(), metavar="FILE", help="Draw the timeline as .png or .svg.")
@options.flag(
    "--target", "TARGET", "Play against the service there instead, or several: unix:PATH,HOST:PORT, file:PATH, …"
)
@options.common
def command(
    *,
    trace: str,
    model: str | None,
    max_requests: Any,
    speed: str | None,
    max_wait: str | None,
    decode_ms: Any,
    prefill_tps: Any,
    limit: Any,
    out: Path | None,
    plot: Path | None,
    target: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Play a Mooncake trace: in process in virtual time, or against a service with --target.

    TRACE.jsonl holds one request a line: timestamp (ms), input_length, output_length, hash_ids. `sample` is the
    bundled one. Beside the result stands what the same trace gets where the device pool is the limit.
    """
    from hisparse_svc.replay import options as replay_options  # noqa: PLC0415 - only this command plays traces
    from hisparse_svc.replay.samples import load_trace  # noqa: PLC0415 - as above

    chosen = _options(speed, max_wait, decode_ms, prefill_tps)
    slots = remote.whole("--max-requests", max_requests) or replay_options.MAX_REQUESTS
    arguments = {name: value for name, value in options.given(flags).items() if name in NODE_FLAGS}
    _fit_together(target, chosen, arguments, max_requests)
    if plot is not None:
        from hisparse_svc.cli import plot as plotter  # noqa: PLC0415 - only with `--plot`

        plotter.check(plot)
    if out is not None and not out.parent.is_dir():
        raise InvalidInput([Problem("--out", f'"{out}"', "must lie in a folder that exists", "make the folder first")])
    played = load_trace(trace, remote.whole("--limit", limit))
    if target is None:
        from hisparse_svc.replay.document import in_process  # noqa: PLC0415 - as above

        with progress(2 * len(played), as_json) as report:
            document = in_process(played, model or "glm-5.2", arguments, chosen, request_slots=slots, progress=report)
    else:
        document = _against(target, played, model, arguments, chosen, quiet=as_json)
    if out is not None:
        out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if plot is not None:
        from hisparse_svc.cli import replay_plot  # noqa: PLC0415 - brings in matplotlib

        replay_plot.draw(document, plot)
    if as_json:
        output.emit_json(document)
    else:
        show(document, out, plot)


def _options(speed: str | None, max_wait: str | None, decode_ms: Any, prefill_tps: Any) -> Options:
    from hisparse_svc.replay.options import Options  # noqa: PLC0415 - as above

    given: dict[str, Any] = {}
    if speed is not None and speed != "max":
        given["speed"] = remote.seconds("--speed", speed.removesuffix("x"), 1.0)
    if max_wait is not None:
        given["max_wait_s"] = remote.seconds("--max-wait", max_wait, 30.0)
    if decode_ms is not None:
        given["decode_ms"] = remote.seconds("--decode-ms", str(decode_ms), 50.0)
    if prefill_tps is not None:
        given["prefill_tps"] = remote.whole("--prefill-tps", prefill_tps)
    return Options(**given)


def _fit_together(target: str | None, chosen: Options, arguments: dict[str, Any], max_requests: Any) -> None:
    problems = []
    if target is None and not math.isinf(chosen.speed):
        rule = "is for a service, and no --target is given: in process, time is virtual"
        problems.append(Problem("--speed", f"{chosen.speed:g}", rule, "leave it out, or give --target"))
    if target is not None:
        node = ("host_pool", "ratio", "hot_rows", "max_requests")
        theirs = [name for name in node if name in arguments or (name == "max_requests" and max_requests is not None)]
        for name in theirs:
            flag = f"--{name.replace('_', '-')}"
            problems.append(Problem(flag, "given", "is the service's own with --target", "leave it out"))
    if problems:
        raise InvalidInput(problems)


def _against(
    target: str, trace: Trace, model: str | None, arguments: dict[str, Any], chosen: Options, *, quiet: bool
) -> dict[str, Any]:
    """Play against a service, and on the device alone of the model it serves."""
    import asyncio  # noqa: PLC0415 - only against a service

    from hisparse_svc import aio, config  # noqa: PLC0415 - as above
    from hisparse_svc.fleet import aio as fleets  # noqa: PLC0415 - as above
    from hisparse_svc.replay import desks, document, live  # noqa: PLC0415 - as above
    from hisparse_svc.replay.options import MAX_REQUESTS  # noqa: PLC0415 - as above

    config.check_environment()

    several = "," in target or target.startswith(FLEETS)

    async def play(report: Callable[[int], None]) -> tuple[dict[str, Any], Any, int]:
        with signals.cancelling():
            if not several:
                async with aio.Client(target) as client:
                    info = await client.server_info()
                    return await live.play(desks.OneNode(client), trace, chosen, report), info, 1
            async with fleets.Fleet(target) as fleet:
                await fleet.wait_until_seen()
                fleet.check()
                answering = [node.name for node in await fleet.nodes() if node.state not in ("silent", "unseen")]
                info = await (await fleet.client(answering[0])).server_info()
                return await live.play(desks.ManyNodes(fleet), trace, chosen, report), info, len(answering)

    with progress(len(trace), quiet) as report:
        played, info, count = asyncio.run(play(report))
    _, device = document.plans(model or info.model, arguments)
    if count > 1:  # the devices of all nodes as one, which is more than they are apart
        whole = {name: value for name, value in arguments.items() if name != "gpu"}
        _, device = document.plans(model or info.model, {**whole, "kv_bytes": device.kv_bytes * count})
    alone = document.play(trace, device, chosen, MAX_REQUESTS * count)
    node = {
        "mode": f"against {target}",
        "speed": "max" if math.isinf(chosen.speed) else chosen.speed,
        "model": info.model,
        "backing": info.backing,
        "kv_bytes": device.kv_bytes,
        "device_pool_tokens": device.logical_tokens,
        **({"nodes": count} if several else {}),
    }
    return document.together(played, alone, node)


@contextmanager
def progress(total: int, quiet: bool, unit: str = "requests") -> Iterator[Callable[[float], None]]:
    """Draw a bar on stderr while work goes on, where somebody looks."""
    from rich.console import Console  # noqa: PLC0415 - as in `output`
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    screen = Console(stderr=True)
    if quiet or not screen.is_terminal:
        yield lambda _: None
        return
    columns = (TextColumn(unit), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task(unit, total=total)
        yield lambda done: bar.update(task, completed=done)


ROWS = {
    "admitted": "admitted",
    "waited": "of them after waiting",
    "refused_busy": "refused: busy",
    "refused_never_fits": "refused: never fits",
    "prefix_hit_pages": "pages found in the prefix cache",
    "peak_pages": "most pages in use",
    "total_pages": "pages of the pool",
    "peak_running": "most requests running",
    "overcommit": "overcommit",
}


def show(document: dict[str, Any], out: Path | None, plot: Path | None) -> None:
    """Print both halves side by side."""
    screen, node, alone = output.console(), document["node"], document["device_only"]
    size = f", host pool {node['host_bytes'] / 2**30:,.1f} GiB" if "host_bytes" in node else ""
    gpu = f"{node['kv_bytes'] / 2**30:,.1f} GiB of GPU memory"
    screen.print(
        f"[bold]{document['requests']:,} requests[/bold], {output.shown(node['model'])}, {gpu}{size}, "
        f"{output.shown(node['mode'])}"
    )
    one, alone_is = (
        ("these nodes", "their devices alone") if node.get("nodes", 1) > 1 else ("this node", "device alone")
    )
    drawn = output.table("", one, alone_is, left=[""])
    for key, words in ROWS.items():
        drawn.add_row(words, f"{document[key]:,}", f"{alone[key]:,}")
    for key, words in (("lost", "lost with their node"), ("unsettled", "their node fell silent over them")):
        if document.get(key):
            drawn.add_row(words, f"{document[key]:,}", "")
    for key, words in (("p50", "wait, median"), ("p99", "wait, 99th percentile"), ("max", "wait, longest")):
        drawn.add_row(f"{words}, s", f"{document['wait_ms'][key] / 1e3:.1f}", f"{alone['wait_ms'][key] / 1e3:.1f}")
    drawn.add_row(
        "new extents per request, mean",
        *(f"{half['new_extents_per_request']['mean']:.2f}" for half in (document, alone)),
    )
    screen.print(drawn)
    if "backing" in node and document["prefix_hit_pages"] == 0:
        screen.print("no prefix was found: only engines publish pages to a service, and this replay runs none")
    for path, verb in ((out, "Saved"), (plot, "Drawn")):
        if path is not None:
            screen.print(f"{verb} to {path}")
