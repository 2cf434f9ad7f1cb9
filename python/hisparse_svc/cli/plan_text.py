"""A plan as people read it: one block of capacity, one of device memory, one table, warnings last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape

from hisparse_svc._core import show_size
from hisparse_svc.cli.output import console, count, table, warning

if TYPE_CHECKING:
    from rich.table import Table

    from hisparse_svc._core import Plan

LIMITS = {
    "host_pages": "host pages",
    "seats": "seats",
    "indexer_tokens": "indexer keys",
    "request_slots": "request slots",
    "window_tokens": "window tokens",
    "device_tokens": "GPU memory",
    "context": "context length",
}
"""How the limits of the JSON are called in text."""

USES = {
    "hot": "hot rows",
    "indexer": "indexer keys",
    "resident": "rows kept on the GPU",
    "draft": "draft layers",
    "maps": "page maps",
    "tables": "hot-cache tables",
    "side": "step buffers",
}
"""How the uses of device memory are called, largest first as a rule."""


def show(plan: Plan) -> None:
    """Print a plan."""
    screen = console()
    screen.print(heading(plan), soft_wrap=True)
    for block in [capacity(plan), device_memory(plan), *([concurrency(plan)] if plan.concurrency else [])]:
        screen.print()
        screen.print(block)
    if plan.binding:
        limits = [LIMITS.get(name, name) for name in plan.binding]
        lead = "Limits, from short contexts to long" if len(limits) > 1 else "Limit"
        screen.print(f"\n{lead}: [bold]{', '.join(limits)}[/bold].")
    for text in plan.warnings:
        warning(text)


def heading(plan: Plan) -> str:
    """Say what was planned for."""
    model, layout = plan.model, plan.layout
    draft = f", {model.draft_layers} draft" if model.draft_layers else ""
    pool = f"ratio {plan.ratio:g}" if plan.hisparse else "no host pool"
    return (
        f"[bold]{escape(model.name)}[/bold]  {model.family}, {model.layers} layer{'' if model.layers == 1 else 's'} "
        f"({model.indexer_layers} with an indexer{draft}), top-k {model.top_k:,}\n"
        f"{layout.kv_dtype} rows of {layout.row_bytes:,} B, indexer keys of {layout.indexer_bytes:,} B\n"
        f"engine {plan.engine}, {show_size(plan.kv_bytes)} of GPU memory for KV, {pool}"
    )


def capacity(plan: Plan) -> Table:
    """Draw what fits on one rank."""
    drawn = table("per rank", "", "", left=["per rank"])
    drawn.columns[2].justify = "left"
    cell = f"{plan.cell_bytes:,}"
    drawn.add_row("bytes per device token", cell, "on the GPU, indexer keys at logical size")
    drawn.add_row("device tokens", count(plan.device_tokens), "rows of main KV that fit on the GPU")
    drawn.add_row("logical tokens", count(plan.logical_tokens), "that fit counting host memory")
    drawn.add_row("longest request", count(plan.max_request_tokens), "tokens: what can ever be admitted")
    drawn.add_row("longest let through", count(plan.max_req_len), f"by engine {plan.engine}, prompt and output")
    drawn.add_row("seats", count(plan.seats), f"running requests, {plan.hot_rows:,} hot rows each")
    everywhere = f"{show_size(plan.physical_host_bytes)} over all ranks and replicas"
    drawn.add_row("host pool", show_size(plan.host_bytes), everywhere)
    if plan.window_tokens is not None:
        drawn.add_row("window tokens", count(plan.window_tokens), "of the sliding-window pool, all seats together")
    if plan.break_even_tokens is not None:
        drawn.add_row("break-even context", count(plan.break_even_tokens), "tokens; below it a hot buffer loses")
    return drawn


def device_memory(plan: Plan) -> Table:
    """Draw what GPU memory is used for."""
    uses = {name: getattr(plan.device_bytes, name) for name in USES}
    total = sum(uses.values())
    drawn = table("GPU memory", "", "share", left=["GPU memory"])
    for name, size in uses.items():
        if size:
            drawn.add_row(USES[name], show_size(size), f"{100 * size / total:.1f} %")
    drawn.add_row("[bold]total[/bold]", show_size(total), f"of {show_size(plan.kv_bytes)}")
    return drawn


def concurrency(plan: Plan) -> Table:
    """Draw how many requests of each length run at once."""
    drawn = table("context", "GPU alone", "host pool", "gain", "host memory", "limited by", left=["limited by"])
    for row in plan.concurrency:
        gain = f"{row.hisparse / row.baseline:.1f}x" if row.baseline else "-"
        limit = LIMITS.get(row.binding, row.binding)
        host = show_size(row.host_bytes)
        drawn.add_row(f"{row.context:,}", count(row.baseline), f"[bold]{row.hisparse:,}[/bold]", gain, host, limit)
    return drawn
