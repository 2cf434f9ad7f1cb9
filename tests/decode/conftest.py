"""Tests of decode sessions need torch: without it they are skipped, and say so."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch", reason="torch is not installed: make setup-engine")
torch.set_num_threads(1)  # tensors here are tiny: threads would spend their time waiting for each other


@pytest.fixture
def tiny_model(tmp_path: Path) -> str:
    """A GLM of five layers, the last two using the third's picks."""
    config = {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        "num_hidden_layers": 5,
        "num_attention_heads": 8,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "hidden_size": 1024,
        "index_head_dim": 128,
        "index_n_heads": 4,
        "index_topk": 64,
        "indexer_types": ["full", "full", "full", "shared", "shared"],
        "max_position_embeddings": 512,
        "vocab_size": 1000,
        "dtype": "bfloat16",
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return str(path)
