"""A model of Hugging Face transformers decodes with its KV in host memory, on a CPU: the same tokens as without.

    plain          generate ───────────────────────────────────► tokens ┐
                                                                         ├─ equal?
    host memory    generate(cache=…) ── hot rows ◄── swapped in ──► tokens ┘

    python examples/decode_on_cpu.py [--prompt-tokens 500] [--new-tokens 48]

Tiny models with random weights, in float32, as are their rows in host memory; both families take about a minute on two
cores. Needs `pip install 'hisparse-svc[transformers]'`, no network and no GPU.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from hisparse_svc.integrations.transformers import HostKv, cache_argument
from transformers import DeepseekV32Config, DeepseekV32ForCausalLM, GlmMoeDsaConfig, GlmMoeDsaForCausalLM

TOP_K = 128
SHAPE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "n_group": 1,
    "topk_group": 1,
    "index_topk": TOP_K,
    "index_n_heads": 16,
    "first_k_dense_replace": 1,
    "initializer_range": 0.15,
    "eos_token_id": None,
    "bos_token_id": None,
}
"""Small where a model may be small; latents, their positions' part and index keys are as wide as in the large ones."""


def glm(context_tokens: int) -> Any:
    """Four layers; the last two use the second's picks."""
    kinds = ["full", "full", "shared", "shared"]
    config = GlmMoeDsaConfig(**SHAPE, num_hidden_layers=4, indexer_types=kinds, max_position_embeddings=context_tokens)
    return GlmMoeDsaForCausalLM(config).eval()


def deepseek(context_tokens: int) -> Any:
    """Three layers, each with its own indexer."""
    config = DeepseekV32Config(**SHAPE, num_hidden_layers=3, max_position_embeddings=context_tokens)
    return DeepseekV32ForCausalLM(config).eval()


def main() -> None:
    """Decode with both models, twice each."""
    parser = argparse.ArgumentParser(description="decode with KV in host memory, on a CPU")
    parser.add_argument("--prompt-tokens", type=int, default=500)
    parser.add_argument("--new-tokens", type=int, default=48)
    asked = parser.parse_args()
    torch.set_num_threads(1)  # tensors here are tiny: threads would spend their time waiting for each other
    context = asked.prompt_tokens + asked.new_tokens + 64
    for name, make in (("GLM-5.2", glm), ("DeepSeek-V3.2", deepseek)):
        torch.manual_seed(0)
        model = make(context)
        prompt = torch.randint(0, SHAPE["vocab_size"], (1, asked.prompt_tokens))
        options = {"max_new_tokens": asked.new_tokens, "do_sample": False}
        began = time.monotonic()
        plain = model.generate(prompt, **options)
        print(f"{name} in small: {asked.new_tokens} tokens behind {asked.prompt_tokens}, top-k {TOP_K}")
        print(f"  all rows resident                          {time.monotonic() - began:5.1f} s")
        for hot_rows in (TOP_K, 2 * TOP_K):
            with HostKv.embedded(model, hot_rows=hot_rows, kv_bytes="48MiB", host_pool="96MiB") as kv:
                began = time.monotonic()
                cache = cache_argument(model, kv.request(asked.prompt_tokens, asked.new_tokens))
                found = model.generate(prompt, **cache, **options)
                took = time.monotonic() - began
                print(f"  {hot_rows} hot rows, {kv.swapped_rows:6} rows swapped in     {took:5.1f} s", end="   ")
                assert torch.equal(found, plain), "tokens differ"
                print("tokens equal")


if __name__ == "__main__":
    main()
