"""What storing rows in BF16 and FP8 does to attention, layer by layer: tiny models of transformers, on a CPU.

    python benches/transformers_rows.py [--out benches/results/transformers_rows.json]

The same tokens are fed to the same float32 weights. Reported per layer is the norm of the difference of attention's
output over the norm of the output, over all steps:

- rows alone: queries, picks and rows are those of the run with fp32 rows; the rows are stored in BF16 or FP8;
- whole run: rows in BF16 or FP8 and index keys in FP8 from the first layer on. A later layer has the errors of those
  before it, and picks that differ: scores of a random model lie close together, so many do. A trained model is not like
  that.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import shlex
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import decode_on_cpu
from hisparse_svc.integrations.transformers import HostCache, HostKv, cache_argument
from hisparse_svc.kernels import sparse_mla_decode
from hisparse_svc.kernels.decode.rows import BF16_ROWS, F32_ROWS, FP8_ROWS, pack_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROMPT_TOKENS, STEPS, HOT_ROWS = 400, 32, 128
FAMILIES = {"glm_moe_dsa": decode_on_cpu.glm, "deepseek_v32": decode_on_cpu.deepseek}
ROWS: dict[str, dict[str, Any]] = {
    "fp32": {"kv_dtype": "float32"},
    "bf16": {"kv_dtype": "bfloat16"},
    "fp8": {"kv_dtype": "fp8_e4m3"},
}
FORMATS = {"fp32": F32_ROWS, "bf16": BF16_ROWS, "fp8": FP8_ROWS}


def rows_alone(make: Any) -> dict[str, list[float]]:
    """Errors of each layer where nothing but the rows differs."""
    asked: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    with decoding(make, ROWS["fp32"]) as (kv, cache, step):
        picks = kv.session.memory.cache.plan.picks
        kv.on_attention = lambda layer, q, _row, _out: asked.setdefault(layer, []).append((q, picks[:1].clone()))
        step()
        (request,) = cache.requests
        keys = [kv.read_rows(request, layer, request.length) for layer in range(kv.session.shape.layers)]
        scales = [layer.self_attn.scaling for layer in kv.model.model.layers]
    found: dict[str, list[torch.Tensor]] = {}
    for name, stored in FORMATS.items():
        for layer, scale in enumerate(scales):
            rows = pack_rows(keys[layer], stored)
            outs = [sparse_mla_decode(q.double(), rows, picked, scale=scale)[0] for q, picked in asked[layer]]
            found.setdefault(name, []).append(torch.stack(outs))
    return compared({name: torch.stack(layers, 1) for name, layers in found.items()})


def whole_run(make: Any) -> dict[str, list[float]]:
    """Errors of each layer where everything behind a row differs too."""
    return compared({name: outputs(make, settings) for name, settings in ROWS.items()})


def compared(found: dict[str, torch.Tensor]) -> dict[str, list[float]]:
    """Errors of each format against the better ones."""
    return {
        f"{worse} against {better}": errors(found[worse], found[better])
        for worse, better in (("bf16", "fp32"), ("fp8", "fp32"), ("fp8", "bf16"))
    }


@contextmanager
def decoding(make: Any, settings: dict[str, Any]) -> Iterator[tuple[HostKv, HostCache, Callable[[], None]]]:
    """A model with its prompt prefilled, and a function that feeds it the tokens behind."""
    torch.manual_seed(0)
    model = make(1024)
    tokens = torch.randint(0, 512, (PROMPT_TOKENS + STEPS,))
    with (
        HostKv.embedded(model, hot_rows=HOT_ROWS, kv_bytes="48MiB", host_pool="96MiB", **settings) as kv,
        kv.request(PROMPT_TOKENS, STEPS) as cache,
        torch.no_grad(),
    ):
        model(input_ids=tokens[None, :PROMPT_TOKENS], **cache_argument(model, cache))

        def step() -> None:
            for token in tokens[PROMPT_TOKENS:]:
                model(input_ids=token.view(1, 1), **cache_argument(model, cache))

        yield kv, cache, step


def outputs(make: Any, settings: dict[str, Any]) -> torch.Tensor:
    """Attention's output in the latent space, `[step, layer, head × 512]`, over tokens that are the same each time."""
    found: list[torch.Tensor] = []
    with decoding(make, settings) as (kv, _, step):
        kv.on_attention = lambda _layer, _q, _row, out: found.append(out.flatten().float())
        step()
        layers = kv.session.shape.layers
    return torch.stack(found).view(STEPS, layers, -1)


def errors(found: torch.Tensor, wanted: torch.Tensor) -> list[float]:
    """Relative error of each layer."""
    return [
        float(f"{float((a - b).norm() / b.norm()):.3g}") for a, b in zip(found.unbind(1), wanted.unbind(1), strict=True)
    ]


def main() -> None:
    """Measure both families, print a table, keep the numbers."""
    parser = argparse.ArgumentParser(description="error of attention by layer, rows in BF16 and FP8")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = {
        "date": str(datetime.datetime.now(datetime.UTC).date()),
        "machine": f"{platform.machine()}, CPU, torch {torch.__version__}",
        "command": shlex.join(["python", *sys.argv]),
        "prompt_tokens": PROMPT_TOKENS,
        "steps": STEPS,
        "relative_error_by_layer": {},
    }
    for family, make in FAMILIES.items():
        for kind, by_layer in (("rows alone", rows_alone(make)), ("whole run", whole_run(make))):
            result["relative_error_by_layer"].setdefault(family, {})[kind] = by_layer
            for what, numbers in by_layer.items():
                print(f"{family:13} {kind:11} {what:18}", *(f"{number:9.5f}" for number in numbers))
    if asked.out:
        asked.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
