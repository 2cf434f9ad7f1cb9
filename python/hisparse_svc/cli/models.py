"""`hisparse-svc models`: the bundled presets."""

from __future__ import annotations

import click

from hisparse_svc.cli import options, output
from hisparse_svc.planner.models import models


@click.command("models")
@options.common
def command(as_json: bool) -> None:
    """List the bundled models, where their numbers come from, and what is not certain about them."""
    loaded = [(preset, preset.load()) for preset in models()]
    if as_json:
        documents = [
            {**model.to_dict(), "name": preset.name, "aliases": preset.aliases, "note": preset.note}
            for preset, model in loaded
        ]
        output.emit_json({"models": documents})
        return
    drawn = output.table(
        "preset", "family", "layers", "indexed", "draft", "top-k", "context", left=("preset", "family")
    )
    for preset, model in loaded:
        drawn.add_row(
            f"[bold]{preset.name}[/bold]",
            preset.family,
            str(model.layers),
            str(model.indexer_layers),
            str(model.draft_layers),
            f"{model.top_k:,}",
            f"{model.context_tokens:,}",
        )
    screen = output.console()
    screen.print(drawn)
    for preset, _ in loaded:
        screen.print(f"[bold]{preset.name}[/bold]: {preset.note}")
