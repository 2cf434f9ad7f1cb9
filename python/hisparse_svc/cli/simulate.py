"""`hisparse-svc simulate`: replacement policies over top-k streams."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from hisparse_svc.cli import options, output
from hisparse_svc.cli.trace_topk import demand_numpy
from hisparse_svc.errors import InvalidInput, Problem

if TYPE_CHECKING:
    from pathlib import Path

    from hisparse_svc.simulate import Wanted


@click.command("simulate")
@click.argument("files", metavar="FILE…", nargs=-1)
@options.flag("--hot-rows", "N,N", "Hot rows of a request and layer.  [4096,8192]")
@options.flag("--policies", "NAME,NAME", "lru, fifo, random, clock, slru, lru-2, arc, s3-fifo, belady.  [all]")
@options.flag("--layers", "N,N", "The model's numbers of the layers.  [all]")
@options.flag("--skip", "N", "First steps of each request that are not counted, while its rows fill.  [0]")
@options.flag("--row-bytes", "N", "Bytes of a row.  [656]")
@options.flag("--batch", "N", "Requests of a step, for the cost; misses are scaled to it.  [those of the files]")
@options.flag("--hide-us", "US", "Time of a layer's other work that a copy can run beside.  [0]")
@options.flag("--seed", "N", "For policies that draw.  [0]")
@click.option("--out", type=options.FileOut(), metavar="FILE", help="Save the JSON document.")
@click.option("--plot", type=options.FileOut(), metavar="FILE", help="Draw misses by rows, layer and step.")
@options.common
def command(*, files: tuple[str, ...], out: Path | None, plot: Path | None, as_json: bool, **flags: Any) -> None:
    """Say what replacement policies would miss on top-k streams (FILE… of `trace-topk`), and what it would cost.

    A step's picks are needed at once: no policy evicts one in its own step. The newest page is apart, as in the hot
    cache. Belady knows the future. Needs numpy (`pip install 'hisparse-svc[simulate]'`).
    """
    if plot is not None:
        from hisparse_svc.cli import plot as plotter  # noqa: PLC0415 - only with `--plot`

        plotter.check(plot)
    problems = []
    if not files:
        problems.append(Problem("FILE", "missing", "must name a stream", "make one with `hisparse-svc trace-topk`"))
    if out is not None and not out.parent.is_dir():
        problems.append(Problem("--out", f'"{out}"', "must lie in a folder that exists", "make the folder first"))
    fields = read(options.given(flags), problems)
    if problems:
        raise InvalidInput(problems)
    demand_numpy()
    from hisparse_svc.cli.replay import progress  # noqa: PLC0415 - only a command that takes time draws a bar
    from hisparse_svc.simulate import Wanted, simulate  # noqa: PLC0415 - numpy, which only streams need
    from hisparse_svc.topk import Stream  # noqa: PLC0415 - as above

    wanted, streams = Wanted(**fields), [Stream(file) for file in files]
    with progress(lanes_of(wanted, streams), as_json, "lanes") as report:
        document = simulate(streams, wanted, report)
    if out is not None:
        out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if plot is not None:
        from hisparse_svc.cli import simulate_plot  # noqa: PLC0415 - brings in matplotlib

        simulate_plot.draw(document, plot)
    if as_json:
        output.emit_json(document)
    else:
        show(document, [path for path in (out, plot) if path is not None])


def read(given: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """Read the flags; what is wrong with them is added to `problems`."""
    fields: dict[str, Any] = {}
    for name, value in given.items():
        flag = f"--{name.replace('_', '-')}"
        try:
            if name == "policies":
                fields[name] = tuple(part.strip() for part in value.split(","))
            elif name in ("hot_rows", "layers"):
                fields[name] = tuple(int(part) for part in value.split(","))
            else:
                fields[name] = float(value) if name == "hide_us" else int(str(value))
        except ValueError:
            rule = "must be numbers with commas between" if name in ("hot_rows", "layers") else "must be a number"
            problems.append(Problem(flag, f'"{value}"', rule, "see `hisparse-svc simulate --help`"))
    return fields


def lanes_of(wanted: Wanted, streams: list[Any]) -> int:
    """Give how many lanes will be run, each policy and number of rows counted."""
    layers = sum(
        len(stream.requests) * len(stream.layers if wanted.layers is None else wanted.layers) for stream in streams
    )
    return layers * len(wanted.policies) * len(wanted.hot_rows)


def show(document: dict[str, Any], written: list[Path]) -> None:
    """Print a line for each policy and number of rows."""
    screen = output.console()
    for path in written:
        screen.print(f"Written: {output.shown(str(path))}")
    screen.print(
        f"{document['requests']:,} requests of {document['mean_context_tokens']:,} tokens, "
        f"{len(document['layers']):,} layers, {document['steps']:,} steps, top-k {document['top_k']:,}"
    )
    columns = ("hot rows", "policy", "misses", "best layer", "worst layer", "MB a step", "swap-in, µs", "exposed, µs")
    drawn = output.table(*columns, left=["policy"])
    for row in document["results"]:
        shares = row["by_layer"].values()
        drawn.add_row(
            f"{row['hot_rows']:,}",
            row["policy"],
            *(f"{share:.2%}" for share in (row["miss_share"], min(shares), max(shares))),
            f"{row['bytes_per_step'] / 1e6:,.2f}",
            f"{row['swap_in_us_per_step']:,.0f}",
            f"{row['exposed_us_per_step']:,.0f}",
        )
    screen.print(drawn)
    screen.print(
        f"misses: of all picks, those of the newest page among the hits; a step: {document['batch']:,} requests, "
        f"these layers, rows of {document['row_bytes']:,} B; times by the model of docs/simulating.md"
    )
