"""`simulate-fleet --plot`: goodput, calls, wait and imbalance against the age of views, a file for each fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hisparse_svc.cli import plot
from hisparse_svc.cli.simulate_fleet_medians import medians
from hisparse_svc.errors import InvalidInput, Problem

if TYPE_CHECKING:
    from pathlib import Path

FIGURES = {
    "goodput": "tokens granted, %",
    "attempts_per_admit": "calls of Admit for each lease",
    "wait_p99_s": "wait, 99th percentile, s",
    "imbalance": "fullest node over the mean",
}


def check(folder: Path) -> None:
    """Refuse plots that could not be written, before anything is played.

    Raises:
        InvalidInput: The folder is a file or has no folder to be made in, or matplotlib is not installed.
    """
    problems = []
    if folder.exists() and not folder.is_dir():
        problems.append(Problem("--plot", f'"{folder}"', "must be a folder", "name one"))
    problems += plot.hindrances(folder)
    if problems:
        raise InvalidInput(problems)


def draw(document: dict[str, Any], folder: Path) -> list[Path]:
    """Draw a document; give the files that were written."""
    folder.mkdir(exist_ok=True)
    rows = medians(document["runs"])
    written = []
    fleets = sorted({(row["nodes"], row["load_milli"]) for row in rows})
    for nodes, load_milli in fleets:
        of = [row for row in rows if (row["nodes"], row["load_milli"]) == (nodes, load_milli)]
        path = folder / f"fleet_{nodes}_{load_milli / 10:g}.png"
        _draw(of, f"{nodes:,} nodes, {load_milli / 10:g} % load", path)
        written.append(path)
    return written


def _draw(rows: list[dict[str, Any]], title: str, path: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import, and an extra

    figure = Figure(figsize=(9, 8), layout="constrained")
    every = figure.subplots(2, 2, sharex=True)
    rules = list(dict.fromkeys((row["policy"], row["choices"]) for row in rows))
    for index, rule in enumerate(rules):
        line = sorted((r for r in rows if (r["policy"], r["choices"]) == rule), key=lambda r: float(r["staleness_s"]))
        ages = [row["staleness_s"] for row in line]
        style = {"color": f"C{index % 10}", "marker": "osv^D"[index % 5], "linestyle": "--" if index % 2 else "-"}
        for axes, name in zip(every.flat, FIGURES, strict=True):
            factor = 100 if name == "goodput" else 1
            label = f"{rule[0]}, {rule[1]:,}"
            axes.plot(ages, [factor * row[name] for row in line], label=label, linewidth=1, markersize=4, **style)
    for axes, name in zip(every.flat, FIGURES, strict=True):
        axes.set_ylabel(FIGURES[name])
        axes.grid(visible=True, alpha=0.3)
    for axes in every[1]:
        axes.set_xlabel("age of views, s")
    lines, labels = every[0][0].get_legend_handles_labels()
    figure.legend(
        lines,
        labels,
        loc="outside lower center",
        ncols=5,
        fontsize="small",
        title="policy, nodes compared",
        title_fontsize="small",
    )
    figure.suptitle(title)
    figure.savefig(path)
