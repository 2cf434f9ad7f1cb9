"""`hisparse-svc trace-topk`: write a synthetic top-k stream, or say what a file holds."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import click

from hisparse_svc.cli import options, output
from hisparse_svc.errors import InvalidInput, Problem

if TYPE_CHECKING:
    from pathlib import Path

    from hisparse_svc.topk import Stream, Synthetic

NUMBERS = ("context", "steps", "requests", "layers", "top_k", "seed")


@click.command("trace-topk")
@click.argument("file", metavar="[FILE]", required=False)
@options.flag("--context", "N", "Tokens of each request before its first step.  [65536]")
@options.flag("--steps", "N", "Steps, each of which adds a token.  [200]")
@options.flag("--requests", "N", "Requests, all of one length.  [1]")
@options.flag("--layers", "N", "Layers that have an index.  [1]")
@options.flag("--top-k", "N", "Picks of a request, layer and step.  [2048]")
@options.flag("--misses", "ROWS:SHARE,…", "Miss share of LRU by hot rows.  [4096:0.13,8192:0.07]")
@options.flag("--seed", "N", "What the picks follow from, with the numbers above.  [0]")
@click.option("--out", type=options.FileOut(), metavar="FILE", help="Write a synthetic stream there.")
@options.common
def command(*, file: str | None, out: Path | None, as_json: bool, **flags: Any) -> None:
    """Write a synthetic top-k stream with --out, or say what FILE holds.

    `hisparse_svc.topk.Recorder` writes such files from a running engine, and `simulate` reads them. Needs numpy
    (`pip install 'hisparse-svc[simulate]'`).
    """
    given = options.given(flags)
    problems = []
    if (file is None) == (out is None):
        rule = "must be a FILE to read, or an --out to write, and one of them"
        problems.append(Problem("FILE", "none" if file is None else f'"{file}"', rule, "give one"))
    if file is not None and out is None:
        rule = "is of the stream that --out writes"
        problems += [Problem(f"--{name.replace('_', '-')}", "given", rule, "leave it out") for name in given]
    if out is not None and not out.parent.is_dir():
        problems.append(Problem("--out", f'"{out}"', "must lie in a folder that exists", "make the folder first"))
    elif out is not None and out.exists() and not out.is_file():
        problems.append(Problem("--out", f'"{out}"', "is there, and is not a regular file", "name another file"))
    if problems:
        raise InvalidInput(problems)
    demand_numpy()
    from hisparse_svc.cli.replay import progress  # noqa: PLC0415 - only where a stream is written
    from hisparse_svc.topk import Stream, write_synthetic  # noqa: PLC0415 - numpy, which only streams need

    if out is not None:
        wanted = read(given)
        with progress(wanted.steps, as_json, "steps") as report:
            write_synthetic(out, wanted, report)
    stream = Stream(out or file or "")
    if as_json:
        output.emit_json(document(stream))
    else:
        show(stream, written=out is not None)


def demand_numpy() -> None:
    """Refuse a machine without numpy.

    Raises:
        InvalidInput: With what to install.
    """
    if importlib.util.find_spec("numpy") is None:
        rule, remedy = "is not installed, and streams need it", "install it with `pip install 'hisparse-svc[simulate]'`"
        raise InvalidInput([Problem("numpy", "missing", rule, remedy)])


def read(given: dict[str, Any]) -> Synthetic:
    """Read the flags of a synthetic stream.

    Raises:
        InvalidInput: With every flag that cannot be read.
    """
    from hisparse_svc.topk import Synthetic  # noqa: PLC0415 - as above

    problems = [
        Problem(f"--{name.replace('_', '-')}", f"{given[name]!r}", "must be a whole number", "give a number")
        for name in NUMBERS
        if name in given and type(given[name]) is not int
    ]
    if "misses" in given:
        try:
            pairs = [part.split(":") for part in given["misses"].split(",")]
            given["misses"] = {int(rows): float(share) for rows, share in pairs}
        except ValueError:
            rule = "must be ROWS:SHARE with commas between"
            problems.append(Problem("--misses", f'"{given["misses"]}"', rule, "give for instance 4096:0.13,8192:0.07"))
    if problems:
        raise InvalidInput(problems)
    return Synthetic(**given)


def document(stream: Stream) -> dict[str, Any]:
    """Say what a stream holds, reading all of it."""
    picks = records = 0
    for step in stream.read():
        records += len(step)
        picks += sum(len(record.tokens) for record in step)
    return {
        "file": str(stream.path),
        "file_bytes": stream.file_bytes,
        "model": stream.model,
        "top_k": stream.top_k,
        "layers": stream.layers,
        "steps": stream.steps,
        "requests": [{"name": name, "joined_tokens": tokens} for name, tokens in stream.requests],
        "records": records,
        "picks": picks,
        "source": stream.source,
    }


def show(stream: Stream, *, written: bool) -> None:
    """Print what a stream holds."""
    told, screen = document(stream), output.console()
    if written:
        screen.print(f"Written: {output.shown(told['file'])}")
    size = f"{told['file_bytes']:,} bytes"
    share = f", {told['file_bytes'] / told['picks']:.2f} a pick" if told["picks"] else ""
    lengths = [request["joined_tokens"] for request in told["requests"]] or [0]
    rows = {
        "model": output.shown(told["model"] or "-"),
        "layers with an index": f"{len(told['layers']):,}",
        "top-k": f"{told['top_k']:,}",
        "requests": f"{len(told['requests']):,}",
        "tokens before the first step": f"{min(lengths):,} to {max(lengths):,}",
        "steps": f"{told['steps']:,}",
        "picks": f"{told['picks']:,}",
        "size": size + share,
    }
    drawn = output.table("", "stream", left=[""])
    for name, text in rows.items():
        drawn.add_row(name, text)
    screen.print(drawn)
    for name, value in told["source"].items():
        screen.print(f"{output.shown(str(name))}: {output.shown(str(value))}")
