"""Tiny models of both families with random weights, and what plain transformers makes of a prompt."""

from __future__ import annotations

import functools
from typing import Any

import torch
from transformers import DeepseekV32Config, DeepseekV32ForCausalLM, GlmMoeDsaConfig, GlmMoeDsaForCausalLM

FAMILIES = ("glm_moe_dsa", "deepseek_v32")
TOP_K = 128
VOCABULARY = 512

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 512,
    "q_lora_rank": 64,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "n_group": 1,
    "topk_group": 1,
    "index_topk": TOP_K,
    "index_head_dim": 128,
    "index_n_heads": 16,  # of few heads all may give 0, and scores would tie
    "first_k_dense_replace": 1,
    "initializer_range": 0.15,  # with the usual 0.02 a random model says one token again and again
    "eos_token_id": None,
    "bos_token_id": None,
}


def make(family: str, *, context_tokens: int = 2048, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A model of a family, with changes to its configuration; the same weights each time."""
    torch.manual_seed(11)
    settings = {**_COMMON, "max_position_embeddings": context_tokens, **changes}
    if family == "glm_moe_dsa":
        kinds = ["full", "full", "shared", "shared"]
        model = GlmMoeDsaForCausalLM(GlmMoeDsaConfig(num_hidden_layers=4, indexer_types=kinds, **settings))
    else:
        model = DeepseekV32ForCausalLM(DeepseekV32Config(num_hidden_layers=3, **settings))
    return model.to(dtype).eval()


@functools.cache
def plain_model(family: str, context_tokens: int = 2048) -> Any:
    """One that nobody hooks."""
    return make(family, context_tokens=context_tokens)


def prompt(tokens: int, seed: int) -> tuple[int, ...]:
    """Tokens at random."""
    random = torch.Generator().manual_seed(1000 * tokens + seed)
    return tuple(torch.randint(0, VOCABULARY, (tokens,), generator=random).tolist())


@functools.cache
def plain_tokens(
    family: str, given: tuple[int, ...], new: int, *, context_tokens: int = 2048, chunk: int | None = None
) -> list[int]:
    """What plain transformers decodes greedily."""
    model = plain_model(family, context_tokens)
    options = {"max_new_tokens": new, "do_sample": False, "prefill_chunk_size": chunk}
    found: list[int] = model.generate(torch.tensor([given]), **options)[0, len(given) :].tolist()
    return found
