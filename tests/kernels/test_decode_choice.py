"""The choice of block and splits: every call gets one that exists and, where the table says so, runs in one wave."""

from __future__ import annotations

import pytest
from hisparse_svc.kernels.cuda.decode_shapes import block_shapes, choose
from hisparse_svc.kernels.cuda.decode_table import TUNED
from hisparse_svc.kernels.decode.call import MAX_HEADS


@pytest.mark.parametrize("rows", TUNED)
def test_every_call_has_a_block(rows: str) -> None:
    for heads in range(1, MAX_HEADS + 1):
        for queries in (1, 2, 3, 5, 8, 31, 64, 100, 128, 133, 256, 1024, 8192):
            for sms in (1, 8, 78, 114, 124, 132):
                shape, splits = choose(rows, heads, queries, sms)
                assert shape in block_shapes(rows)
                assert splits in shape.splits, (heads, queries, sms)


@pytest.mark.parametrize("rows", TUNED)
def test_the_table_is_in_order_and_fits_one_wave(rows: str) -> None:
    assert list(TUNED[rows]) == sorted(TUNED[rows])
    assert max(TUNED[rows]) == MAX_HEADS
    for heads, column in TUNED[rows].items():
        assert [line[0] for line in column] == sorted({line[0] for line in column})
        for line in column:
            shape, splits = choose(rows, heads, line[0], 132)
            assert (line[0], shape.heads, splits) == line
            assert line[0] * shape.blocks(heads, splits) <= 132, (heads, line)


def test_fewer_sms_mean_fewer_blocks_at_once() -> None:
    for queries in (1, 16, 31, 64, 128):
        for heads in (8, 64):
            shape, splits = choose("fp8", heads, queries, 132)
            fewer_shape, fewer = choose("fp8", heads, queries, 100)
            assert queries * fewer_shape.blocks(heads, fewer) <= 100 or queries > 100, (queries, heads)
            assert (fewer_shape, fewer) == (shape, splits) or queries * shape.blocks(heads, splits) > 100
