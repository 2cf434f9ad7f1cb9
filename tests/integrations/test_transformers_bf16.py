"""Models in BF16, on the CPU and on a GPU: logits near plain transformers', and what FP8 rows cost in each layer.

What rounding turns into something else is taken out, as scores of a random model lie close together: picks are those of
the plain run, and no layer has a router.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hisparse_svc.integrations.transformers import HostKv, cache_argument
from hisparse_svc.kernels import sparse_mla_decode
from hisparse_svc.kernels.decode.rows import BF16_ROWS, FP8_ROWS, pack_rows
from transformers import DynamicCache

from tests.integrations import models

if TYPE_CHECKING:
    from collections.abc import Sequence

PROMPT_TOKENS, STEPS = 330, 12
TOKENS = models.prompt(PROMPT_TOKENS + STEPS, 4)

LOGITS_BOUND = 0.03
"""Largest error of a step's logits, norm over norm. Plain transformers' own, against itself in fp32, is 0.009."""

FP8_BOUND = 0.06
"""Largest error of a layer's attention over FP8 rows against BF16 rows: e4m3 has 3 bits behind the point."""


@dataclass
class Picks:
    """Picks of each decode step and layer, kept in a first run and given to a second."""

    kept: list[torch.Tensor] = field(default_factory=list)

    def keep(self, _module: Any, _arguments: Any, picks: torch.Tensor) -> None:
        if picks.shape[1] == 1:
            self.kept.append(picks.clone())

    def give(self, _module: Any, _arguments: Any, picks: torch.Tensor) -> torch.Tensor | None:
        return self.kept.pop(0) if picks.shape[1] == 1 else None


def logits(model: Any, cache: Any, hook: Any, tokens: Sequence[int] = TOKENS, steps: int = STEPS) -> torch.Tensor:
    """Logits of the last steps, `[step, vocabulary]`, over tokens that are the same each time."""
    indexers = [layer.self_attn.indexer for layer in model.model.layers if layer.self_attn.indexer is not None]
    hooks = [indexer.register_forward_hook(hook) for indexer in indexers]
    ids, prompt = torch.tensor([tokens], device=model.device), len(tokens) - steps
    with torch.no_grad():
        model(input_ids=ids[:, :prompt], logits_to_keep=1, **cache_argument(model, cache))
        found = [
            model(input_ids=ids[:, at : at + 1], **cache_argument(model, cache)).logits[0, -1].float()
            for at in range(prompt, len(tokens))
        ]
    for one in hooks:
        one.remove()
    return torch.stack(found)


def make(family: str) -> Any:
    """Quieter than the other tests' models: what layers add to their input is what rounding grows by."""
    return models.make(family, dtype=torch.bfloat16, first_k_dense_replace=4, initializer_range=0.06)


def in_host_memory(model: Any, hot_rows: int, kv_dtype: str = "bfloat16") -> HostKv:
    settings = {"kv_bytes": "24MiB", "host_pool": "64MiB", "kv_dtype": kv_dtype}
    return HostKv.embedded(model, hot_rows=hot_rows, **settings)


def error(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return (found - wanted).norm(dim=-1) / wanted.norm(dim=-1)


@pytest.mark.parametrize("hot_rows", [128, 192, 256])
@pytest.mark.parametrize("family", models.FAMILIES)
def test_logits_stay_near_those_of_plain_transformers(family: str, hot_rows: int, device: str) -> None:
    plain, picks = make(family).to(device), Picks()
    wanted = logits(plain, DynamicCache(config=plain.config), picks.keep)
    model = make(family).to(device)
    with in_host_memory(model, hot_rows) as kv, kv.request(PROMPT_TOKENS, STEPS) as cache:
        found = logits(model, cache, picks.give)
        assert kv.swapped_rows > 100, "no rows were missing: nothing was tried"
    assert not picks.kept
    errors = error(found, wanted)
    assert errors.max() <= LOGITS_BOUND, errors


@pytest.mark.parametrize("family", models.FAMILIES)
def test_fp8_rows_cost_a_few_percent_in_every_layer(family: str, device: str) -> None:
    model = make(family).to(device)
    asked: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    with in_host_memory(model, 128) as kv, kv.request(PROMPT_TOKENS, STEPS) as cache:
        picks = kv.session.memory.cache.plan.picks
        kv.on_attention = lambda layer, q, _row, _out: asked.setdefault(layer, []).append((q, picks[:1].clone()))
        logits(model, cache, Picks().keep)
        (request,) = cache.requests
        for layer, steps in asked.items():
            rows = kv.read_rows(request, layer, request.length)
            scale = model.model.layers[layer].self_attn.scaling
            by_format = [
                torch.stack(
                    [sparse_mla_decode(q, packed, chosen, scale=scale)[0].flatten().float() for q, chosen in steps]
                )
                for packed in (pack_rows(rows, FP8_ROWS), pack_rows(rows, BF16_ROWS))
            ]
            errors = error(*by_format)
            assert 0 < errors.max() <= FP8_BOUND, (layer, errors)
