"""Pictures of a table of swap-ins: time over misses, for each size of rows and batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

__all__ = ["draw"]

LINES = (("swap_in", "resolve and gather", "-o"), ("plain", "best ordered gather", "--s"), ("memcpy", "memcpy", ":^"))


def draw(document: dict[str, Any], folder: Path) -> list[Path]:
    """Draw one picture per size of rows; give their paths."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import, and an extra

    drawn = []
    for row_bytes in _values(document, "row_bytes"):
        batches = _values(document, "requests")
        figure = Figure(figsize=(5 * len(batches), 4), layout="constrained", dpi=80)
        for axes, requests in zip(figure.subplots(1, len(batches), squeeze=False)[0], batches, strict=True):
            rows = [row for row in document["swap_in"] if (row["row_bytes"], row["requests"]) == (row_bytes, requests)]
            _one(axes, rows)
            axes.set_title(f"{requests} requests, rows of {row_bytes} B")
        figure.suptitle(f"{document['gpu']}, {document['date'][:10]}: one layer's swap-in", fontsize="medium")
        path = folder / f"swap_in_{row_bytes}.png"
        figure.savefig(path)
        drawn.append(path)
    return drawn


def _one(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    for index, (layout, of_layout) in enumerate(_by_layout(rows)):
        for key, name, style in LINES if index == 0 else LINES[:1]:
            points = [(row["misses"], row[key]["us"]) for row in of_layout if key in row]
            if points:
                label = f"{name}, pages {layout}" if key == "swap_in" else name
                axes.plot(*zip(*points, strict=True), style, label=label, markersize=4)
    axes.set_xlabel("misses of each request")
    axes.set_ylabel("µs")
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize="small")


def _by_layout(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for layout in dict.fromkeys(row["layout"] for row in rows):
        yield layout, [row for row in rows if row["layout"] == layout]


def _values(document: dict[str, Any], key: str) -> list[int]:
    return list(dict.fromkeys(row[key] for row in document["swap_in"]))
