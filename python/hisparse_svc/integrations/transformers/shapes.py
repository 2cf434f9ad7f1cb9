"""A model of transformers as the service knows it, and whether the kernels can read what it stores.

::

    model.config ── check_model ── config_json ──► plan: layout, seats, pages ──► DecodeShape of a session
"""

from __future__ import annotations

import json
from typing import Any

import torch

from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kernels.decode.rows import KEY_WIDTH, LATENT_WIDTH
from hisparse_svc.kernels.index.keys import INDEX_WIDTH

__all__ = ["FAMILIES", "check_model", "config_json"]

FAMILIES = ("glm_moe_dsa", "deepseek_v32")
"""Model types whose attention this package knows."""


def config_json(model: Any) -> str:
    """Give a model's configuration as the text of a `config.json` that the planner reads.

    Args:
        model: A model of transformers.
    """
    config = model.config.to_dict()
    config["architectures"] = [type(model).__name__]
    return json.dumps(config)


def check_model(model: Any) -> None:
    """Check that the kernels can read what this model stores.

    Raises:
        InvalidInput: With everything that does not fit.
    """
    config, problems = model.config, []

    def expect(field: str, wanted: int, why: str) -> None:
        found = getattr(config, field, None)
        if found != wanted:
            problems.append(Problem(field, str(found), f"must be {wanted}", why))

    if config.model_type not in FAMILIES:
        rule = f"must be {' or '.join(FAMILIES)}"
        raise InvalidInput([Problem("model_type", str(config.model_type), rule, "decode it with transformers' cache")])
    expect("kv_lora_rank", LATENT_WIDTH, "rows of the hot cache hold so many numbers")
    expect("qk_rope_head_dim", KEY_WIDTH - LATENT_WIDTH, "and so many that carry the position")
    expect("index_head_dim", INDEX_WIDTH, "index keys have so many numbers")
    if model.dtype not in (torch.float32, torch.bfloat16):
        rule = "must be torch.float32 or torch.bfloat16"
        problems.append(Problem("dtype", str(model.dtype), rule, "load the model in bfloat16"))
    if problems:
        raise InvalidInput(problems)
