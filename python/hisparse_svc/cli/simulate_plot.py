"""`simulate --plot`: misses of each policy by hot rows, by layer and by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def draw(document: dict[str, Any], path: Path) -> None:
    """Draw a simulation to a file; layers and steps with the middle number of hot rows."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import, and an extra

    figure = Figure(figsize=(9, 9), layout="constrained")
    by_rows, by_layer, by_step = figure.subplots(3, 1)
    names = list(dict.fromkeys(row["policy"] for row in document["results"]))
    sizes = sorted({row["hot_rows"] for row in document["results"]})
    middle = sizes[len(sizes) // 2]
    for index, name in enumerate(names):
        style = {"color": f"C{index}", "linestyle": "--" if name == "belady" else "-", "label": name}
        rows = sorted(
            (row for row in document["results"] if row["policy"] == name), key=lambda row: int(row["hot_rows"])
        )
        by_rows.plot([row["hot_rows"] for row in rows], [100 * row["miss_share"] for row in rows], marker="o", **style)
        for axes, key in ((by_layer, "by_layer"), (by_step, "by_step")):
            shares = next(row[key] for row in rows if row["hot_rows"] == middle)
            places = [int(number) for number in shares]
            marker = "o" if len(places) < 30 else ""
            axes.plot(places, [100 * share for share in shares.values()], marker=marker, linewidth=1, **style)
    by_rows.set_xlabel("hot rows")
    by_layer.xaxis.get_major_locator().set_params(integer=True)
    by_layer.set_xlabel(f"layer, {middle:,} hot rows")
    by_step.set_xlabel(f"step, {middle:,} hot rows")
    for axes in (by_rows, by_layer, by_step):
        axes.set_ylabel("misses, % of picks")
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
    by_rows.legend(fontsize="small", ncols=3)
    by_rows.set_title(
        f"{document['requests']:,} requests of {document['mean_context_tokens']:,} tokens, "
        f"{len(document['layers']):,} layers, top-k {document['top_k']:,}"
    )
    figure.savefig(path)
