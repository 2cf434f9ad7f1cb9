"""The indexer's kernels compile for every shape the product has, without a GPU, and their shapes fit an SM."""

from __future__ import annotations

import pytest
from hisparse_svc.kernels import Geometry
from hisparse_svc.kernels.cuda import index
from hisparse_svc.kernels.cuda.compile import compile_cubin

pytest.importorskip("cuda.core", reason="cuda-core is not installed: make setup-engine")

H200_SHARED_BYTES = 232_448


@pytest.mark.parametrize(("heads", "query_rows"), [(64, 1), (32, 2), (128, 4), (8, 8)])
def test_logits_compile(heads: int, query_rows: int) -> None:
    shape = index.logits_shape_for(heads, query_rows, H200_SHARED_BYTES)
    constants = dict(index.logits_constants(heads, query_rows, shape))
    constants |= {"THREADS": shape.threads, "SHARED_BYTES": shape.shared_bytes}
    assert compile_cubin("index_logits.cu", constants, "sm_90a").startswith(b"\x7fELF")


@pytest.mark.parametrize(("top_k", "query_rows", "cluster"), [(2048, 1, 2), (64, 4, 8), (8192, 2, 1)])
def test_top_k_compiles(top_k: int, query_rows: int, cluster: int) -> None:
    geometry = Geometry(seats=2, hot_rows=16_384, top_k=top_k, query_rows=query_rows)
    constants = dict(index.top_k_constants(geometry, cluster))
    constants |= {"THREADS": index.TOP_K_THREADS, "SHARED_BYTES": index.TOP_K_SHARED_BYTES}
    assert compile_cubin("index_top_k.cu", constants, "sm_90").startswith(b"\x7fELF")


@pytest.mark.parametrize("value_bytes", [2, 4])
def test_storing_keys_compiles(value_bytes: int) -> None:
    constants = {"PAGE": 64, "VALUE_BYTES": value_bytes, "THREADS": 256, "SHARED_BYTES": 0}
    assert compile_cubin("index_keys.cu", constants, "sm_90").startswith(b"\x7fELF")


@pytest.mark.parametrize("heads", [1, 8, 32, 40, 64, 96, 128])
@pytest.mark.parametrize("query_rows", range(1, 9))
def test_a_block_of_the_logits_has_pages_enough_in_flight(heads: int, query_rows: int) -> None:
    shape = index.logits_shape_for(heads, query_rows, H200_SHARED_BYTES)
    assert shape.stages >= 8
    assert shape.stages % shape.groups == 0
    assert shape.rows <= query_rows


@pytest.mark.parametrize(
    ("queries", "context", "cluster"),
    [
        (64, 65_536, 2),
        (128, 65_536, 1),
        (1, 1 << 20, 8),
        (1, 4096, 1),
        (1, 65_536, 4),
        (16, 131_072, 4),
        (32, 131_072, 2),
    ],
)
def test_a_query_row_gets_as_many_blocks_as_there_are_sms_and_tokens_for(
    queries: int, context: int, cluster: int
) -> None:
    assert index.cluster_for(queries, context, 132) == cluster
