"""Pictures of a table of swap-ins: time over misses, for each size of rows and batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

__all__ = ["draw"]

STYLES = {"swap_in": "-o", "plain": "--"}
TITLE = "one layer's swap-in (solid), the best ordered gather of the same rows (dashed), memcpy (dotted)"


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
        figure.suptitle(f"{document['gpu']}, {document['date'][:10]}: {TITLE}", fontsize="medium")
        path = folder / f"swap_in_{row_bytes}.png"
        figure.savefig(path)
        drawn.append(path)
    return drawn


def _one(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    for index, (layout, of_layout) in enumerate(_by_layout(rows)):
        for key, style in STYLES.items():
            label = f"pages {layout}" if key == "swap_in" else None
            axes.plot(*_points(of_layout, key), style, color=f"C{index}", label=label, markersize=4)
        if index == 0:
            axes.plot(*_points(of_layout, "memcpy"), ":", color="black")
    axes.set_xlabel("misses of each request")
    axes.set_ylabel("µs")
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize="small")


def _points(rows: Sequence[dict[str, Any]], key: str) -> tuple[list[int], list[float]]:
    measured = [row for row in rows if key in row]
    return [row["misses"] for row in measured], [row[key]["us"] for row in measured]


def _by_layout(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for layout in dict.fromkeys(row["layout"] for row in rows):
        yield layout, [row for row in rows if row["layout"] == layout]


def _values(document: dict[str, Any], key: str) -> list[int]:
    return list(dict.fromkeys(row[key] for row in document["swap_in"]))
