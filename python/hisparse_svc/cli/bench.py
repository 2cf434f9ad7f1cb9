"""`hisparse-svc bench`: what swap-in takes on this machine's GPU."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from hisparse_svc import _core
from hisparse_svc.cli import options, output
from hisparse_svc.errors import HiSparseError, InvalidInput, Problem

if TYPE_CHECKING:
    from hisparse_svc.bench.swap_in import Wanted

WHOLE = re.compile("[0-9]{1,9}")
LARGEST_BATCH = 128
LARGEST_MISSES = 2048
COLUMNS = ("rows", "shape", "pages", "resolve", "gather", "both", "ordered", "%", "memcpy", "%")
NUMBERS = (("requests", 1, LARGEST_BATCH, 1), ("misses", 0, LARGEST_MISSES, 1), ("row_bytes", 16, 4096, 16))
LAYOUTS = ("contiguous", "scattered", "churned_90", "churned_full")


class NoGpu(HiSparseError):
    """This machine cannot be measured; the text says what is missing and what to do."""

    exit_code: ClassVar[int] = 4


@click.command("bench")
@options.flag("--host-memory", "SIZE", "Host memory to go through: 45GiB hold eight layers of 656 B rows.  [45GiB]")
@options.flag("--requests", "N,N", f"Batches, each at most {LARGEST_BATCH}.  [128,32]")
@options.flag("--misses", "N,N", "Missing rows of each request.  [0,8,32,102,205,410]")
@options.flag("--row-bytes", "N,N", "Sizes of rows.  [656,1152]")
@options.flag("--layouts", "NAME,NAME", f"Where pages lie: {', '.join(LAYOUTS)}.  [all]")
@click.option("--ascending", is_flag=True, help="Picks by token, as a deterministic top-k gives them.")
@click.option("--out", type=options.FileOut(), metavar="FILE", help="Save the JSON document.")
@click.option("--plots", type=click.Path(path_type=Path), metavar="FOLDER", help="Draw PNGs there.")
@options.common
def command(
    *,
    ascending: bool,
    out: Path | None,
    plots: Path | None,
    as_json: bool,
    **flags: str | None,
) -> None:
    """Compile the kernels, check them, and time swap-in beside this machine's memcpy and the best ordered gather.

    Needs a CUDA GPU and torch (`pip install 'hisparse-svc[engine]'`); everything takes two to three minutes.
    """
    problems = unwritable(out, plots)
    fields = read(flags, problems)
    if problems:
        raise InvalidInput(problems)
    demand_gpu()
    from hisparse_svc.bench import swap_in  # noqa: PLC0415 - torch takes seconds

    wanted = swap_in.Wanted(**fields, ascending=ascending)
    check_memory(wanted, swap_in.layer_bytes(max(wanted.row_bytes)))
    document = swap_in.measure(wanted, lambda text: None if as_json else click.echo(text, err=True))
    if out is not None:
        out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    drawn: list[Path] = []
    if plots is not None:
        from hisparse_svc.bench import plots as plotter  # noqa: PLC0415 - brings in matplotlib

        drawn = plotter.draw(document, plots)
    if as_json:
        output.emit_json(document)
    else:
        show(document, [*([out] if out else []), *drawn])


def unwritable(out: Path | None, plots: Path | None) -> list[Problem]:
    """Say what could not be written, before minutes are spent."""
    problems = []
    if out is not None and not out.parent.is_dir():
        problems.append(Problem("--out", f'"{out}"', "must lie in a folder that exists", "make the folder first"))
    if plots is not None and not plots.is_dir():
        problems.append(Problem("--plots", f'"{plots}"', "must be a folder that exists", "make the folder first"))
    if plots is not None and importlib.util.find_spec("matplotlib") is None:
        remedy = "install it with `pip install 'hisparse-svc[plot]'`"
        problems.append(Problem("--plots", f'"{plots}"', "needs matplotlib, which is not installed", remedy))
    return problems


def read(flags: dict[str, str | None], problems: list[Problem]) -> dict[str, Any]:
    """Read the flags; those that were not given are left out, and what is wrong with others is added to `problems`."""
    fields: dict[str, Any] = {}
    for name, low, high, step in NUMBERS:
        if (text := flags[name]) is None:
            continue
        parts = [part.strip() for part in text.split(",")]
        numbers = [int(part) for part in parts if WHOLE.fullmatch(part)]
        if len(numbers) < len(parts) or any(not low <= n <= high or n % step for n in numbers):
            multiple = f", multiples of {step}" if step > 1 else ""
            rule = f"must be numbers from {low} to {high}{multiple}, with commas between"
            problems.append(
                Problem(f"--{name.replace('_', '-')}", f'"{text}"', rule, "leave it out for the whole table")
            )
        fields[name] = tuple(numbers)
    if (layouts := flags["layouts"]) is not None:
        fields["layouts"] = tuple(part.strip() for part in layouts.split(","))
        if any(name not in LAYOUTS for name in fields["layouts"]):
            rule = f"must be some of {', '.join(LAYOUTS)}"
            problems.append(Problem("--layouts", f'"{layouts}"', rule, "leave it out for all of them"))
    if (host_memory := flags["host_memory"]) is not None:
        try:
            fields["host_bytes"] = _core.parse_size(host_memory, "--host-memory")
        except InvalidInput as wrong:
            problems += wrong.problems
    return fields


def demand_gpu() -> None:
    """Refuse a machine without torch, cuda-core or CUDA.

    Raises:
        NoGpu: With what is missing.
    """
    for module, package in (("torch", "torch"), ("cuda.core", "cuda-core")):
        try:
            missing = importlib.util.find_spec(module) is None
        except ModuleNotFoundError:
            missing = True
        if missing:
            raise NoGpu(f"bench needs {package}, which is not installed; `pip install 'hisparse-svc[engine]'`")
    import torch  # noqa: PLC0415 - torch takes seconds

    if not torch.cuda.is_available():
        raise NoGpu(
            "torch finds no CUDA device here; run bench on the machine with the GPU, `hisparse-svc doctor` helps"
        )


def check_memory(wanted: Wanted, layer_bytes: int) -> None:
    """Refuse memory that this machine does not have, or that holds not one layer.

    Raises:
        InvalidInput: With the size that would do.
    """
    if wanted.host_bytes < layer_bytes:
        value, rule = f"{wanted.host_bytes:,} bytes", f"must hold one layer, {layer_bytes:,} bytes"
        raise InvalidInput([Problem("--host-memory", value, rule, "give more, or a smaller --row-bytes")])
    _core.check_host_pool("--host-memory", wanted.host_bytes)


def show(document: dict[str, Any], written: list[Path]) -> None:
    """Print the table, the best ordered gather and memcpy beside it."""
    screen = output.console()
    for path in written:
        screen.print(f"Written: {path}")
    drawn = output.table(*COLUMNS, left=["pages"])
    for row in document["swap_in"]:
        told = [f"{row['row_bytes']} B", f"{row['requests']} × {row['misses']}", row["layout"]]
        told.append(f"{row['resolve']['us']:.1f}")
        if row["misses"]:
            told += [f"{row[key]['us']:.1f}" for key in ("gather_default", "swap_in")]
            for yardstick in ("plain", "memcpy"):
                told += [f"{row[yardstick]['us']:.1f}", f"{row[f'{yardstick}_over_gather']:.0%}"]
        else:
            told += ["-", f"{row['swap_in']['us']:.1f}", *"----"]
        drawn.add_row(*told)
    screen.print(drawn)
    screen.print(
        "µs of one layer, medians; %: of the best ordered gather's rate, and of memcpy's, that the gather reaches"
    )
    screen.print(f"{document['gpu']}, {document['date']}; {document['checks']} checks passed")
