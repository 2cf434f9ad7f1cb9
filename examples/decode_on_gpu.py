"""More requests than a GPU's memory holds KV for, with layers as large as GLM-5.2's: all of them decode, on one GPU.

    GPU            weights ─ index keys of all tokens ─ hot rows of each request
                                                          ▲ missing rows, each step and layer
    host memory    rows of all tokens, in the pool of a node in this process

    python examples/decode_on_gpu.py [--layers 6] [--experts 256] [--context 65536] [--host-pool 88GiB]

Random weights in BF16, and a history of random tokens, which is written to the pool in bulk; what follows is decoded by
transformers' own code: first for as many requests as GPU memory alone would hold, then for all. The defaults need a GPU
of 141 GB and 100 GiB of host memory. Needs `pip install 'hisparse-svc[transformers]'` and no network.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hisparse_svc
import torch
from hisparse_svc.integrations.transformers import ContinuousBatch, HostKv, config_json
from hisparse_svc.kernels.decode.rows import KEY_WIDTH, ROW_FORMATS, pack_rows
from hisparse_svc.kernels.index.keys import INDEX_WIDTH
from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM

if TYPE_CHECKING:
    from hisparse_svc.engine import Running
    from hisparse_svc.integrations.transformers import Generation

VOCABULARY = 32_768
WARM_STEPS = 3
"""Steps behind a change of who runs that are not counted: their hot rows are cold, and kernels are compiled."""

LAYER: dict[str, Any] = {
    "hidden_size": 6144,
    "intermediate_size": 12_288,
    "moe_intermediate_size": 2048,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "q_lora_rank": 2048,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "index_topk": 2048,
    "index_n_heads": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
"""A layer of GLM-5.2."""


def make_model(layers: int, experts: int, context_tokens: int, device: str = "cuda", **changes: Any) -> Any:
    """A model of `layers` layers, the first one dense; layers 0, 1, 2, 5, 8 … have an indexer."""
    kinds = ["full" if number < 2 or number % 3 == 2 else "shared" for number in range(layers)]
    config = GlmMoeDsaConfig(
        **{**LAYER, **changes},
        vocab_size=VOCABULARY,
        num_hidden_layers=layers,
        n_routed_experts=experts,
        indexer_types=kinds,
        max_position_embeddings=context_tokens,
        eos_token_id=None,
        bos_token_id=None,
        dtype="bfloat16",
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):  # where the weights are made: there is no room for them elsewhere
        model = GlmMoeDsaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    return model


def device_alone(model: Any, context_tokens: int, **settings: Any) -> int:
    """How many requests of a length the same GPU memory would hold by itself."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(config_json(model), encoding="utf-8")
        plan = hisparse_svc.plan(str(path), context=context_tokens, **settings)
        return plan.concurrency[0].baseline


def begin(kv: HostKv, driver: ContinuousBatch, context_tokens: int, new_tokens: int) -> Generation:
    """Let a request join whose history is there already; its last token is fed first."""
    history = torch.randint(0, VOCABULARY, (context_tokens,)).tolist()
    generation = driver.submit(history, new_tokens)
    driver.join()
    write_history(kv, driver.running[generation], context_tokens - 1)
    return generation


def write_history(kv: HostKv, request: Running, tokens: int) -> None:
    """Write random rows and index keys of a request's first tokens, as a prefill elsewhere would."""
    shape, device = kv.session.shape, kv.model.device
    stored = ROW_FORMATS[shape.row_format.row_bytes]
    for layer in range(shape.layers):
        rows = pack_rows(torch.randn(tokens, KEY_WIDTH, device=device), stored)
        keys = torch.randn(tokens, INDEX_WIDTH, device=device) if shape.place(layer)[1] == 0 else None
        kv.session.prefill(request, layer, rows, keys=keys)
    kv.session.prefilled(request, tokens)


def decode(driver: ContinuousBatch, kv: HostKv, steps: int) -> dict[str, Any]:
    """Decode some steps of everybody: tokens a second, and how much of what was picked came from host memory."""
    for _ in range(WARM_STEPS):
        driver.step()
    took, swapped = [], kv.swapped_rows
    for _ in range(steps):
        began = time.monotonic()
        driver.step()  # tokens are read from the device: it has done its work by then
        took.append(time.monotonic() - began)
    took.sort()
    median, requests = took[steps // 2], len(driver.running)
    picked = steps * requests * kv.session.shape.layers * kv.model.config.index_topk
    return {
        "requests": requests,
        "step_ms": round(1e3 * median, 1),
        "step_ms_spread": round(1e3 * (took[-1] - took[0]), 1),
        "tokens_per_s": round(requests / median, 1),
        "missed_share": round((kv.swapped_rows - swapped) / picked, 3),
    }


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Decode, and say what it took."""
    parser = argparse.ArgumentParser(description="decode more requests than GPU memory holds KV for")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--context", type=int, default=65_536, help="tokens of each request before it decodes")
    parser.add_argument("--requests", type=int, default=0, help="0: as many as are admitted")
    parser.add_argument("--batch", type=int, default=64, help="most requests in one pass")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--hot-rows", type=int, default=4096)
    parser.add_argument("--kv-dtype", default="bfloat16", choices=["bfloat16", "fp8_e4m3"])
    parser.add_argument("--kv-bytes", default="16GiB", help="GPU memory for index keys and hot rows")
    parser.add_argument("--host-pool", default="88GiB")
    parser.add_argument("--device", default="cuda", help="cpu tries it without a GPU; layers are to be small then")
    asked = parser.parse_args(arguments)
    began, on_gpu = time.monotonic(), asked.device != "cpu"

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    settings = {"kv_dtype": asked.kv_dtype, "kv_bytes": asked.kv_bytes}
    new_tokens = 2 * (asked.steps + WARM_STEPS) + 1
    model = make_model(asked.layers, asked.experts, asked.context + new_tokens + 64, asked.device)
    weights_bytes = sum(one.nbytes for one in model.parameters())
    alone = device_alone(model, asked.context + new_tokens, **settings)
    say(f"{asked.layers} layers, {weights_bytes / 2**30:.1f} GiB of weights")
    with HostKv.embedded(model, hot_rows=asked.hot_rows, host_pool=asked.host_pool, **settings) as kv:
        say(f"host pool of {asked.host_pool}, {kv.session.free_seats} seats")
        fits = kv.client.get_capacity([asked.context + new_tokens]).fits[0].count
        count = min(fits, asked.requests or fits, kv.session.free_seats)
        driver = ContinuousBatch(kv, batch=asked.batch)
        measured = []
        for many in sorted({min(alone, count), count} - {0}):
            for _ in range(many - len(driver.running)):
                begin(kv, driver, asked.context, new_tokens)
            measured.append(decode(driver, kv, asked.steps))
            say(f"{many} requests of {asked.context} tokens: {measured[-1]}")
        result = {
            "layers": asked.layers,
            "experts": asked.experts,
            "context_tokens": asked.context,
            "kv_dtype": asked.kv_dtype,
            "hot_rows": asked.hot_rows,
            "batch": asked.batch,
            "requests_device_alone": alone,
            "measured": measured,
            "weights_bytes": weights_bytes,
            "device_bytes": kv.session.memory.device_bytes,
            "peak_device_bytes": torch.cuda.max_memory_allocated() if on_gpu else 0,
            "host_rows_bytes": sum(rows.view.nbytes for rows in kv.session.memory.host.rows),
        }
        say(f"GPU memory alone would hold {alone}; peak of {result['peak_device_bytes'] / 2**30:.1f} GiB on the device")
    return result


if __name__ == "__main__":
    main()
