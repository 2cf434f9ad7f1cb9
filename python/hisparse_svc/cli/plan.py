"""`hisparse-svc plan`: what fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hisparse_svc.cli import options, output
from hisparse_svc.planner.plan import plan_from

if TYPE_CHECKING:
    from pathlib import Path


@click.command("plan")
@click.argument("model", type=options.ModelWord())
@options.flag("--engine", options.choices("engine"), "Whose allocation to describe.")
@options.flag("--platform", options.choices("platform"), "GPU software platform.")
@options.flag("--sm", "N", "CUDA compute capability times ten: 90, 100, 120.")
@options.flag("--kv-dtype", options.choices("kv_dtype"), "How main KV is stored.")
@click.option("--no-hisparse", is_flag=True, help="Plan without a host pool.")
@options.flag("--ratio", "R", "Logical tokens per device token.")
@options.flag("--host-pool", "SIZE", "Size of the host pool, instead of a ratio.")
@click.option("--auto", is_flag=True, help="Choose hot rows and ratio for the most concurrency.")
@options.flag("--hot-rows", "N", "GPU rows per running request and layer.")
@options.flag("--page-size", "N", "Tokens in one page.")
@options.flag("--num-layers", "N", "Plan for the first N layers.")
@options.flag("--stage", "A:B", "Plan for layers A up to, and without, B.")
@options.flag("--tp", "N", "Tensor-parallel ranks.")
@options.flag("--dp", "N", "Data-parallel replicas.")
@options.flag("--pp", "N", "Pipeline stages.")
@click.option("--ep", is_flag=True, help="Spread experts over all tensor and data ranks.")
@options.flag("--max-seqs", "N", "Most requests at once the engine is set to.")
@options.flag("--mtp", "N", "Speculative tokens per step.")
@options.flag("--draft-layers", "N", "Draft layers to budget.")
@options.flag("--gpu", options.choices("gpu"), "A GPU, which gives memory, platform and capability.")
@options.flag("--kv-bytes", "SIZE", "GPU memory for KV on one rank.")
@options.flag("--weights", "SIZE", "Weights on one rank, where the planner does not know them.")
@options.flag("--context", "N", "A context length for the concurrency table; may be given several times.", many=True)
@click.option("--share-host", is_flag=True, help="All ranks of a replica share one host pool.")
@options.flag("--assume-memory", "SIZE", "Host memory that the pool must fit.")
@options.flag("--swa-full-tokens-ratio", "R", "SGLang: window tokens per full token.")
@options.flag("--chunked-prefill-size", "N", "SGLang: tokens of one prefill chunk.")
@click.option("--plot", type=options.FileOut(), metavar="FILE", help="Draw the concurrency table as .png or .svg.")
@options.common
def command(model: str, no_hisparse: bool, plot: Path | None, as_json: bool, **flags: Any) -> None:
    """Say what fits: bytes, tokens, seats and concurrency of MODEL on a GPU.

    MODEL is a config.json, a folder that holds one, or a preset (`hisparse-svc models` lists them). Sizes are written
    512MiB, 160GiB or as bytes.
    """
    arguments = options.given(flags)
    if no_hisparse:
        arguments["hisparse"] = False
    if plot is not None:
        from hisparse_svc.cli import plot as plotter  # noqa: PLC0415 - only with `--plot`

        plotter.check(plot)
        arguments.setdefault("context", plotter.CONTEXTS)
    plan = plan_from(model, arguments)
    if plot is not None:
        plotter.draw(plan, plot)
    if as_json:
        output.emit_json_text(plan.to_json())
    else:
        from hisparse_svc.cli.plan_text import show  # noqa: PLC0415 - brings in rich, which `--json` never needs

        show(plan)
        if plot is not None:
            click.echo(f"Drawn to {plot}")
