"""`replay --plot`: pages in use, running and waiting over the trace, with the device alone beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def draw(document: dict[str, Any], path: Path) -> None:
    """Draw a replay's timeline to a file."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import, and an extra

    figure = Figure(figsize=(9, 8), layout="constrained")
    pages, running, waiting = figure.subplots(3, 1, sharex=True)
    halves = {
        "this node": (document["timeline"], document["total_pages"], "-"),
        "device alone": (document["device_only_timeline"], document["device_only"]["total_pages"], "--"),
    }
    for name, (timeline, total, style) in halves.items():
        minutes = [sample["at_ms"] / 60_000 for sample in timeline]
        used = [100 * sample["used_pages"] / total for sample in timeline]
        pages.plot(minutes, used, style, label=f"{name}, of {total:,} pages")
        running.plot(minutes, [sample["seats"] for sample in timeline], style, label=name)
        waiting.plot(minutes, [sample["waiting"] for sample in timeline], style, label=name)
    pages.set_ylabel("pages in use, %")
    pages.set_ylim(0, 105)
    running.set_ylabel("requests running")
    waiting.set_ylabel("requests waiting")
    waiting.set_xlabel("trace time, minutes")
    for axes in (pages, running, waiting):
        axes.grid(visible=True, alpha=0.3)
        axes.legend(loc="upper right")
    admitted, alone = document["admitted"], document["device_only"]["admitted"]
    pages.set_title(f"{document['requests']:,} requests: {admitted:,} admitted, {alone:,} by the device alone")
    figure.savefig(path)
