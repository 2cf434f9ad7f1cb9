"""`generate` through host memory, one request: the tokens of plain transformers, and the picks of our indexer."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
import torch
from hisparse_svc import InvalidInput
from hisparse_svc.engine import IndexInputs
from hisparse_svc.integrations.transformers import HostCache, HostKv, cache_argument

from tests.integrations import models

SMALL: dict[str, Any] = {"kv_bytes": "48MiB", "host_pool": "96MiB"}
PREFILL_TOKENS = 500
"""Tokens of a piece of a long prompt."""

LONG = bool(os.environ.get("HISPARSE_TRANSFORMERS_LONG"))


@pytest.mark.parametrize("family", models.FAMILIES)
@pytest.mark.parametrize("hot_rows", [128, 192])
def test_generate_gives_the_tokens_of_plain_transformers(family: str, hot_rows: int) -> None:
    given = models.prompt(300, 0)
    model = models.make(family)
    with HostKv.embedded(model, hot_rows=hot_rows, **SMALL) as kv:
        cache = kv.request(len(given), 40)
        options = {"max_new_tokens": 40, "do_sample": False}
        found = model.generate(torch.tensor([given]), **cache_argument(model, cache), **options)
        assert found[0, 300:].tolist() == models.plain_tokens(family, given, 40)
        assert kv.swapped_rows > 1000, "no rows were missing: nothing was tried"
        cache.close()
        seats = kv.client.get_capacity().pool("seats")
        assert seats.free == seats.total


@pytest.mark.timeout(1200)  # a minute of one core, more where others work too
@pytest.mark.parametrize("family", models.FAMILIES)
@pytest.mark.parametrize(
    ("tokens", "steps", "hot_rows"),
    [
        (300, 512, 128),
        (8000, 24, 256),
        pytest.param(
            8000,
            512,
            256,
            marks=pytest.mark.skipif(not LONG, reason="minutes of one core: HISPARSE_TRANSFORMERS_LONG=1"),
        ),
    ],
)
def test_long_prompts_and_many_steps_give_the_tokens_of_plain_transformers(
    family: str, tokens: int, steps: int, hot_rows: int
) -> None:
    given, context = models.prompt(tokens, 0), 16_384
    model = models.make(family, context_tokens=context)
    with HostKv.embedded(model, hot_rows=hot_rows, host_pool="256MiB", kv_bytes="96MiB") as kv:
        options = {"max_new_tokens": steps, "do_sample": False, "prefill_chunk_size": PREFILL_TOKENS}
        cache = cache_argument(model, kv.request(tokens, steps))
        found = model.generate(torch.tensor([given]), **cache, **options)
        wanted = models.plain_tokens(family, given, steps, context_tokens=context, chunk=PREFILL_TOKENS)
        assert found[0, tokens:].tolist() == wanted
        assert kv.swapped_rows > 200 * steps


@pytest.mark.parametrize("family", models.FAMILIES)
def test_a_hooked_model_with_another_cache_runs_as_before(family: str) -> None:
    given, model = models.prompt(200, 2), models.make(family)
    with HostKv.embedded(model, hot_rows=128, **SMALL):
        found = model.generate(torch.tensor([given]), max_new_tokens=12, do_sample=False)
    assert found[0, 200:].tolist() == models.plain_tokens(family, given, 12)


def test_a_model_that_the_kernels_cannot_read_is_refused_with_every_reason() -> None:
    model = models.make("deepseek_v32")
    model.config.kv_lora_rank, model.config.index_head_dim = 256, 64
    with pytest.raises(InvalidInput, match="kv_lora_rank") as refused:
        HostKv.embedded(model, **SMALL)
    assert [problem.field for problem in refused.value.problems] == ["kv_lora_rank", "index_head_dim"]


def test_a_request_longer_than_its_lease_is_refused() -> None:
    model = models.make("deepseek_v32")
    with HostKv.embedded(model, hot_rows=128, **SMALL) as kv, kv.request(20, 10) as cache:
        with pytest.raises(InvalidInput, match="longer lease"):
            model(input_ids=torch.tensor([models.prompt(31, 0)]), **cache_argument(model, cache))
        two = torch.tensor([models.prompt(5, 0), models.prompt(5, 1)])
        with pytest.raises(InvalidInput, match="the requests of this cache"):
            model(input_ids=two, **cache_argument(model, cache))


@pytest.mark.parametrize("family", models.FAMILIES)
def test_our_indexer_picks_what_the_models_own_does(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.make(family)
    compared, differing = 0, 0
    with HostKv.embedded(model, hot_rows=128, **SMALL) as kv, kv.request(200, 20) as cache:
        plain_attend = HostCache.attend

        def attend(self: HostCache, layer: int, q: Any, indices: Any, *, scale: float) -> Any:
            nonlocal compared, differing
            if kv.session.shape.place(layer)[1] == 0:
                assert self._open is not None
                step = self._open.step
                step.score(layer, inputs[layer])
                ours = step.plan.picks[0, 0].tolist()
                compared += len(ours)
                differing += len(set(ours) - set(indices[0, 0].tolist()))
            return plain_attend(self, layer, q, indices, scale=scale)

        inputs: dict[int, IndexInputs] = {}
        for layer in model.model.layers:
            indexer = layer.self_attn.indexer
            if indexer is not None:
                indexer.register_forward_pre_hook(_remember(inputs), with_kwargs=True)
        monkeypatch.setattr(HostCache, "attend", attend)
        given = torch.tensor([models.prompt(200, 3)])
        model.generate(given, **cache_argument(model, cache), max_new_tokens=20, do_sample=False)
    assert compared >= 19 * models.TOP_K * 2
    assert differing <= compared / 10_000, f"{differing} of {compared} picks differ"


def _remember(inputs: dict[int, IndexInputs]) -> Any:
    """A hook that makes, of what an indexer is given, what ours is given: the same projections and rotations."""

    def hook(indexer: Any, arguments: Any, _: Any) -> None:
        hidden, residual, (cos, sin) = arguments[0], arguments[1], arguments[2]
        if hidden.shape[1] != 1:
            return
        modeling = sys.modules[type(indexer).__module__]
        glm = "Glm" in type(indexer).__name__
        rotate = modeling.apply_rotary_pos_emb_interleave if glm else modeling.apply_rotary_pos_emb
        q = indexer.wq_b(residual).view(1, 1, indexer.n_heads, 128)
        key = indexer.k_norm(indexer.wk(hidden)).unsqueeze(2)
        q_rope, key_rope = rotate(q[..., :64], key[..., :64], cos, sin, unsqueeze_dim=2)
        inputs[indexer.layer_idx] = IndexInputs(
            torch.cat([q_rope, q[..., 64:]], dim=-1).contiguous(),
            indexer.weights_proj(hidden).float(),
            torch.cat([key_rope, key[..., 64:]], dim=-1).squeeze(2).contiguous(),
        )

    return hook
