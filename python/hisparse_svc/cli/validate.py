"""`hisparse-svc validate`: whether a configuration is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hisparse_svc.cli import options, output
from hisparse_svc.planner.validate import validate_from

if TYPE_CHECKING:
    from hisparse_svc._core import Validation


@click.command("validate")
@click.argument("model", type=options.ModelWord(), required=False)
@options.flag("--engine", options.choices("engine"), "Whose rules apply.")
@options.flag("--hisparse-config", "JSON", "The engine's HiSparse configuration, as it takes it.")
@options.flag("--platform", options.choices("platform"), "GPU software platform.")
@options.flag("--sm", "N", "CUDA compute capability times ten: 90, 100, 120.")
@options.flag("--kv-dtype", options.choices("kv_dtype", "auto"), "How main KV is stored.")
@options.flag("--prefill-backend", options.choices("backend"), "Attention backend of prompts.")
@options.flag("--decode-backend", options.choices("backend"), "Attention backend of decode steps.")
@options.flag("--heads", "N", "Query heads on one rank.")
@options.flag("--host-pool", "SIZE", "Size of the node's host pool, measured against this machine.")
@options.flag("--assume-memory", "SIZE", "Memory to measure the pool against instead.")
@options.flag("--context", "N", "Longest request in tokens, which the pool must be able to hold.")
@options.flag("--page-size", "N", "Tokens in one page.")
@click.option("--disable-radix-cache/--enable-radix-cache", default=None, help="SGLang: prefix reuse off, or on.")
@click.option("--enable-mixed-chunk", is_flag=True, help="SGLang: prefill and decode may share a batch.")
@options.flag("--speculative-num-steps", "N", "SGLang: draft steps.")
@options.flag("--speculative-num-draft-tokens", "N", "SGLang: tokens verified at once.")
@options.flag("--speculative-eagle-topk", "N", "SGLang: branches of the draft tree.")
@options.flag("--pp-size", "N", "SGLang: pipeline stages.")
@options.common
def command(model: str | None, as_json: bool, disable_radix_cache: bool | None, **flags: Any) -> int:
    """Check a configuration: backends, hot buffer, ratio, host pool; every problem together.

    MODEL is a config.json, a folder that holds one, or a preset; without one the bare backend table answers. Exit
    code 0 means valid, 2 means not.
    """
    arguments = options.given(flags)
    if disable_radix_cache is not None:
        arguments["disable_radix_cache"] = disable_radix_cache
    verdict = validate_from(model, arguments)
    if as_json:
        output.emit_json_text(verdict.to_json())
    else:
        show(verdict)
    for problem in verdict.problems:
        output.error(str(problem))
    return 0 if verdict.valid else 2


def show(verdict: Validation) -> None:
    """Print a verdict for people; problems go to stderr, after it."""
    screen = output.console()
    count = len(verdict.problems)
    problems = "one problem" if count == 1 else f"{count} problems"
    screen.print("[bold green]valid[/bold green]" if verdict.valid else f"[bold red]not valid[/bold red]: {problems}")
    resolved = verdict.resolved
    rows = {
        "prefill backend": resolved.prefill_backend,
        "decode backend": resolved.decode_backend,
        "KV type": resolved.kv_dtype,
        "hot rows": resolved.hot_rows,
        "ratio": resolved.ratio,
        "top-k": resolved.top_k,
        "page": resolved.page_size,
    }
    drawn = output.table("resolved", "", left=["resolved", ""])
    for name, value in rows.items():
        if value is not None:
            drawn.add_row(name, f"{value:,}" if isinstance(value, int) else str(value))
    if drawn.row_count:
        screen.print(drawn)
    for text in verdict.warnings:
        output.warning(text)
