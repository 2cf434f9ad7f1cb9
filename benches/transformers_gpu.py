"""Models of transformers on a GPU: how near BF16 logits are, what FP8 rows cost by layer, and how many requests decode.

    python benches/transformers_gpu.py [--out benches/results/transformers_gpu.json] [--part logits] [--part scale]

`logits`: three dense layers as large as GLM-5.2's, 6,000 tokens of prompt, top-k 2,048, picks of the plain run given to
the other: norm of the difference of a step's logits over their norm, median and largest of the steps. `rows`: error of
attention over FP8 rows against BF16 ones in each of its layers, same queries and picks. `scale`: what
`examples/decode_on_gpu.py` decodes.
"""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from gpu import document, keep, note

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import decode_on_gpu
from hisparse_svc.integrations.transformers import HostKv
from hisparse_svc.kernels import sparse_mla_decode
from hisparse_svc.kernels.decode.rows import BF16_ROWS, FP8_ROWS, pack_rows
from transformers import DynamicCache

from tests.integrations.test_transformers_bf16 import Picks, error, logits

if TYPE_CHECKING:
    from collections.abc import Callable

PROMPT_TOKENS, STEPS, LAYERS = 6_000, 24, 3
SCALES = {
    "bf16": ["--layers", "7", "--host-pool", "100GiB", "--kv-bytes", "13GiB"],
    "fp8": ["--layers", "7", "--host-pool", "60GiB", "--kv-bytes", "13GiB", "--kv-dtype", "fp8_e4m3"],
}


def of(errors: torch.Tensor) -> dict[str, float]:
    """Median and largest."""
    return {"median": float(f"{float(errors.median()):.4g}"), "largest": float(f"{float(errors.max()):.4g}")}


def keep_questions(
    asked: dict[int, list[tuple[torch.Tensor, torch.Tensor]]], picks: torch.Tensor
) -> Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], None]:
    """What keeps queries and picks of each layer."""
    return lambda layer, q, _row, _out: asked.setdefault(layer, []).append((q, picks[:1].clone()))


def logits_and_rows() -> dict[str, Any]:
    """Errors of logits with 1×, 1.5× and 2× the top-k as hot rows, and of FP8 rows by layer."""
    model = decode_on_gpu.make_model(LAYERS, 8, PROMPT_TOKENS + STEPS + 64, first_k_dense_replace=LAYERS)
    model.set_attn_implementation("sdpa")
    tokens = torch.randint(0, decode_on_gpu.VOCABULARY, (PROMPT_TOKENS + STEPS,)).tolist()
    top_k, picks = model.config.index_topk, Picks()
    wanted = logits(model, DynamicCache(config=model.config), picks.keep, tokens, STEPS)
    result: dict[str, Any] = {"logits": {}, "rows": []}
    for hot_rows in (top_k, top_k * 3 // 2, 2 * top_k):
        sizes = {"host_pool": "256MiB", "kv_bytes": "512MiB"}
        with (
            HostKv.embedded(model, hot_rows=hot_rows, kv_dtype="bfloat16", **sizes) as kv,
            kv.request(PROMPT_TOKENS, STEPS) as cache,
        ):
            asked: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
            kv.on_attention = keep_questions(asked, kv.session.memory.cache.plan.picks)
            found = logits(model, cache, Picks(list(picks.kept)).give, tokens, STEPS)
            result["logits"][str(hot_rows)] = {**of(error(found, wanted)), "swapped_rows": kv.swapped_rows}
            note("hot rows", hot_rows, result["logits"][str(hot_rows)])
            if hot_rows == top_k:
                (request,) = cache.requests
                for layer, steps in asked.items():
                    rows, scale = (
                        kv.read_rows(request, layer, request.length),
                        model.model.layers[layer].self_attn.scaling,
                    )
                    fp8, bf16 = (
                        torch.stack(
                            [sparse_mla_decode(q, packed, one, scale=scale)[0].flatten().float() for q, one in steps]
                        )
                        for packed in (pack_rows(rows, FP8_ROWS), pack_rows(rows, BF16_ROWS))
                    )
                    result["rows"].append(of(error(fp8, bf16)))
                    note("layer", layer, "FP8 against BF16 rows", result["rows"][-1])
    return result


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description="models of transformers on a GPU")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--part", action="append", choices=["logits", *SCALES])
    asked = parser.parse_args()
    parts = asked.part or ["logits", *SCALES]
    result = document("as named", transformers=transformers.__version__, prompt_tokens=PROMPT_TOKENS, steps=STEPS)
    for part in parts:
        result |= logits_and_rows() if part == "logits" else {part: decode_on_gpu.main(SCALES[part])}
        keep(result, asked.out)
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
