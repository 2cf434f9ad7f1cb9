"""What must hold of every plan: monotone in each input, never more than there is, never a crash."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import hisparse_svc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

MODELS = {preset.name: preset.load() for preset in hisparse_svc.models()}
MLA = sorted(name for name, model in MODELS.items() if model.family in ("deepseek_v32", "glm_moe_dsa"))

models = st.sampled_from(sorted(MODELS)).map(MODELS.__getitem__)
mla_models = st.sampled_from(MLA).map(MODELS.__getitem__)
ratios = st.integers(1, 40)
kv_gib = st.integers(4, 400)
contexts = st.integers(64, 1 << 20)


def hot_rows(model: hisparse_svc.Model) -> st.SearchStrategy[int]:
    return st.integers(-(-model.picks_per_row // 64), 32_768 // 64).map(lambda pages: pages * 64)


def plan(model: hisparse_svc.Model, **question: Any) -> hisparse_svc.Plan:
    return hisparse_svc.plan(model, **question)


@settings(deadline=None)
@given(models, ratios, kv_gib, kv_gib)
def test_more_gpu_memory_never_means_fewer_tokens_or_seats(
    model: hisparse_svc.Model, ratio: int, one: int, other: int
) -> None:
    small, large = (plan(model, ratio=ratio, kv_bytes=gib << 30) for gib in sorted((one, other)))
    assert small.device_tokens <= large.device_tokens
    assert small.logical_tokens <= large.logical_tokens
    assert small.host_bytes <= large.host_bytes
    assert small.seats <= large.seats


@settings(deadline=None)
@given(models, kv_gib, ratios, ratios)
def test_a_larger_ratio_never_makes_a_token_cheaper_or_leaves_more_seats(
    model: hisparse_svc.Model, gib: int, one: int, other: int
) -> None:
    small, large = (plan(model, ratio=ratio, kv_bytes=gib << 30) for ratio in sorted((one, other)))
    assert small.cell_bytes <= large.cell_bytes
    assert small.device_tokens >= large.device_tokens
    assert small.seats >= large.seats


@settings(deadline=None)
@given(mla_models, kv_gib, ratios, st.data())
def test_a_larger_hot_buffer_never_leaves_more_seats(
    model: hisparse_svc.Model, gib: int, ratio: int, data: st.DataObject
) -> None:
    def seats(rows: int) -> int:
        try:
            return plan(model, ratio=ratio, kv_bytes=gib << 30, hot_rows=rows).seats
        except hisparse_svc.InvalidInput as refusal:
            assert [problem.rule.partition(":")[0] for problem in refusal.problems] == ["admits nothing"]
            return 0

    small, large = (seats(rows) for rows in sorted(data.draw(hot_rows(model)) for _ in range(2)))
    assert small >= large


@settings(deadline=None)
@given(models, kv_gib, ratios, st.lists(contexts, min_size=2, max_size=8))
def test_a_longer_context_never_means_more_requests_at_once(
    model: hisparse_svc.Model, gib: int, ratio: int, lengths: list[int]
) -> None:
    table = plan(model, ratio=ratio, kv_bytes=gib << 30, context=sorted(lengths)).concurrency
    for shorter, longer in pairwise(table):
        assert shorter.context <= longer.context
        assert shorter.baseline >= longer.baseline
        assert shorter.hisparse >= longer.hisparse


@settings(deadline=None)
@given(mla_models, kv_gib, ratios)
def test_a_plan_never_spends_more_than_it_has(model: hisparse_svc.Model, gib: int, ratio: int) -> None:
    made = plan(model, ratio=ratio, kv_bytes=gib << 30)
    used = made.device_bytes
    total = used.hot + used.indexer + used.tables + used.maps + used.side + used.draft + used.resident
    assert total <= made.kv_bytes, made
    assert made.device_tokens % made.page_tokens == 0
    assert made.logical_tokens >= made.device_tokens
    assert made.max_req_len <= made.logical_tokens
    assert made.max_request_tokens <= made.logical_tokens


@settings(deadline=None)
@given(mla_models, kv_gib, st.integers(1, 20))
def test_a_host_pool_as_large_as_a_ratio_asks_for_serves_as_many(
    model: hisparse_svc.Model, gib: int, ratio: int
) -> None:
    by_ratio = plan(model, ratio=ratio, kv_bytes=gib << 30)
    by_pool = plan(model, host_pool=by_ratio.host_bytes, kv_bytes=gib << 30)
    assert by_pool.host_bytes <= by_ratio.host_bytes
    assert by_pool.seats >= by_ratio.seats, (by_ratio, by_pool)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
keys = st.sampled_from(sorted(hisparse_svc._core.tables()["plan_keys"])) | st.text(max_size=12)


@settings(deadline=None, max_examples=300)
@given(models, st.dictionaries(keys, plain, max_size=6))
def test_whatever_is_asked_the_answer_is_a_plan_or_problems(
    model: hisparse_svc.Model, question: dict[str, Any]
) -> None:
    try:
        answer = hisparse_svc.planner.plan.plan_from(model, question)
    except hisparse_svc.InvalidInput as refusal:
        assert refusal.problems
        assert all(problem.rule and problem.remedy for problem in refusal.problems)
    else:
        assert answer.seats >= 0


fields = st.sampled_from(sorted(MODELS["glm-5.2"].to_dict())) | st.sampled_from(
    ["model_type", "index_topk", "index_topk_freq", "index_topk_pattern", "num_hidden_layers", "kv_lora_rank", "dtype"]
)


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(fields, plain, max_size=6), st.sampled_from(["deepseek_v32", "glm_moe_dsa", "deepseek_v4", "x"]))
def test_whatever_a_config_holds_the_answer_is_a_model_or_problems(changes: dict[str, Any], family: str) -> None:
    text = json.dumps({"model_type": family, **changes})
    try:
        model = hisparse_svc.Model.from_json_text("x", text)
    except hisparse_svc.InvalidInput as refusal:
        assert refusal.problems
    else:
        assert model.layers > 0


@settings(deadline=None)
@given(st.text(max_size=200))
def test_whatever_text_is_no_config_is_refused(text: str) -> None:
    with pytest.raises(hisparse_svc.InvalidInput):
        hisparse_svc.Model.from_json_text("x", text)
