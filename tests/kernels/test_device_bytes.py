"""What a plan says in `device_bytes` is, to the byte, what the hot cache allocates."""

from __future__ import annotations

import gc

import hisparse_svc
import pytest
import torch
from hisparse_svc import InvalidInput
from hisparse_svc.engine import Geometry, HotCache, RowFormat


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("glm-5.2", {}),
        ("glm-5.2", {"kv_dtype": "fp8_e4m3", "hot_rows": 8192}),
        ("glm-5.2", {"kv_dtype": "fp8_e4m3", "hot_rows": 6144, "ratio": 10, "kv_bytes": 30 << 30}),
        ("glm-5.2", {"kv_dtype": "bfloat16", "max_seqs": 7}),
        ("deepseek-v3.2", {"kv_dtype": "bfloat16", "kv_bytes": 40 << 30}),
        ("deepseek-v3.2", {"kv_dtype": "fp8_e4m3", "hot_rows": 32_768}),
    ],
)
def test_the_plan_is_the_allocation(model: str, options: dict[str, object]) -> None:
    plan = hisparse_svc.plan(model, **options)
    geometry = Geometry(
        seats=plan.seats,
        hot_rows=plan.hot_rows,
        top_k=plan.model.top_k,
        context_tokens=hisparse_svc.load_model(model).context_tokens,
    )
    row = RowFormat(plan.layout.kv_dtype, plan.layout.row_bytes)
    assert row.stride_bytes == plan.layout.row_stride
    groups = plan.model.layer_groups
    assert sum(groups) == plan.model.layers
    cache = HotCache(geometry, groups, row, "meta", pool_rows=plan.device_tokens)
    planned = {name: getattr(plan.device_bytes, name) for name in cache.device_bytes}
    assert cache.device_bytes == planned
    assert cache.spare_rows[0].shape[1] < geometry.padded_rows or plan.seats == options.get("max_seqs")


@pytest.mark.gpu
def test_a_gpu_allocates_what_was_planned() -> None:
    plan = hisparse_svc.plan("glm-5.2", kv_dtype="fp8_e4m3", hot_rows=4096, kv_bytes=8 << 30)
    geometry = Geometry(
        seats=plan.seats,
        hot_rows=plan.hot_rows,
        top_k=plan.model.top_k,
        context_tokens=hisparse_svc.load_model("glm-5.2").context_tokens,
    )
    groups = plan.model.layer_groups
    gc.collect()  # what earlier tests left must not go meanwhile
    before = torch.cuda.memory_allocated()
    row = RowFormat(plan.layout.kv_dtype, plan.layout.row_bytes)
    cache = HotCache(geometry, groups, row, "cuda:0", pool_rows=plan.device_tokens)
    planned = {name: getattr(plan.device_bytes, name) for name in cache.device_bytes}
    assert cache.device_bytes == planned
    # torch hands out what was asked for, and at most a MiB more to each tensor.
    tensors = len(groups) + 1 + 4 + 5
    assert 0 <= torch.cuda.memory_allocated() - before - sum(planned.values()) <= tensors << 20


def test_fewer_rows_than_the_seats_take_are_refused() -> None:
    geometry = Geometry(seats=2, hot_rows=64, top_k=16)
    with pytest.raises(InvalidInput, match="at least 256"):
        HotCache(geometry, [1], RowFormat("rows", 656), "meta", pool_rows=255)
