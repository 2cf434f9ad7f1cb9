"""`plan --plot`: concurrency and host bytes against context length. matplotlib is imported here and only here."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from hisparse_svc.errors import InvalidInput, Problem

if TYPE_CHECKING:
    from pathlib import Path

    from hisparse_svc._core import Plan

KINDS = (".png", ".svg")

CONTEXTS = [1 << power for power in range(12, 21)]
"""Lengths drawn where none is asked for: 4K to 1M tokens."""

GIB = 1 << 30


def check(path: Path) -> None:
    """Refuse a plot that could not be written, before anything is computed.

    Raises:
        InvalidInput: The file's kind is unknown, its folder is missing, or matplotlib is not installed.
    """
    problems = []
    if path.suffix.lower() not in KINDS:
        problems.append(Problem("--plot", f'"{path}"', "must end in .png or .svg", "name the file so"))
    problems += hindrances(path)
    if problems:
        raise InvalidInput(problems)


def hindrances(path: Path) -> list[Problem]:
    """Say what keeps a plot, or a folder of plots, from being drawn there."""
    problems = []
    if not path.parent.is_dir():
        problems.append(Problem("--plot", f'"{path}"', "must lie in a folder that exists", "make the folder first"))
    if importlib.util.find_spec("matplotlib") is None:
        remedy = "install it with `pip install 'hisparse-svc[plot]'`"
        problems.append(Problem("--plot", f'"{path}"', "needs matplotlib, which is not installed", remedy))
    return problems


def draw(plan: Plan, path: Path) -> None:
    """Draw a plan's concurrency table to a file."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import, and an extra
    from matplotlib.ticker import FuncFormatter  # noqa: PLC0415 - as above

    rows = sorted(plan.concurrency, key=lambda row: row.context)
    contexts = [row.context for row in rows]
    figure = Figure(figsize=(8, 6), layout="constrained")
    requests, memory = figure.subplots(2, 1, sharex=True)

    requests.plot(contexts, [row.hisparse for row in rows], marker="o", label="with the host pool")
    requests.plot(contexts, [row.baseline for row in rows], marker="s", linestyle="--", label="GPU alone")
    requests.set_ylabel("requests at once, per replica")
    requests.set_yscale("symlog", linthresh=1)
    requests.set_ylim(bottom=0)
    requests.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    requests.legend()

    memory.plot(contexts, [row.host_bytes / GIB for row in rows], marker="o")
    memory.set_ylabel("host memory they need, GiB")
    memory.set_ylim(bottom=0)
    memory.set_xlabel("context length, tokens")
    memory.set_xscale("log", base=2)
    memory.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))

    for axes in (requests, memory):
        axes.grid(visible=True, alpha=0.3)
    title = (
        f"{plan.model.name}, {plan.layout.kv_dtype}, {plan.hot_rows:,} hot rows, {plan.kv_bytes / GIB:.1f} GiB for KV"
    )
    requests.set_title(title)
    figure.savefig(path)


def short(tokens: float) -> str:
    """Write a length as engineers say it: 128K, 1M."""
    for size, unit in ((1 << 20, "M"), (1 << 10, "K")):
        if tokens >= size:
            return f"{tokens / size:g}{unit}"
    return f"{tokens:g}"
