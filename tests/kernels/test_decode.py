"""Sparse MLA decode on the CPU: the reference against arithmetic written apart from it, merging, and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from hisparse_svc import InvalidInput
from hisparse_svc.engine import MLA_FP8, Geometry, HotCache
from hisparse_svc.kernels import merge_lse, sparse_mla_decode
from hisparse_svc.kernels.decode.backends import AUTO_ORDER, BACKENDS
from hisparse_svc.kernels.decode.call import MAX_PICKS, make_call

from tests.kernels.decode_cases import EDGE_NAMES, ROW_BYTES, SCALE, edge_cases, make
from tests.kernels.refused import refused_fields

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("name", EDGE_NAMES)
@pytest.mark.parametrize("kind", ROW_BYTES)
def test_the_reference_is_attention_over_the_picked_rows(kind: str, name: str) -> None:
    case = edge_cases(kind, 5)[name].poisoned()
    out, lse = sparse_mla_decode(**(case.arguments() | {"q": case.q.double()}), scale=SCALE)
    wanted_out, wanted_lse = case.oracle()
    torch.testing.assert_close(out, wanted_out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse, wanted_lse, rtol=1e-12, atol=1e-12)


def test_fp32_numbers_give_exact_answers() -> None:
    rows = torch.zeros(3, 576)
    rows[0, :512], rows[1, :512], rows[2, 512:] = 1.0, 4.0, 7.0
    picks = torch.tensor([[[0, 1, 1, 2]]], dtype=torch.int32)
    out, lse = sparse_mla_decode(torch.zeros(1, 1, 2, 576), rows.view(torch.uint8), picks, scale=1.0)
    assert out.dtype is torch.float32
    assert out.unique().tolist() == [(1.0 + 4.0 + 4.0 + 0.0) / 4]
    torch.testing.assert_close(lse, torch.full((1, 1, 2), 4.0).log())


def test_outputs_have_the_type_of_queries_and_go_where_told() -> None:
    case = make("bf16", 3)
    out, lse = torch.empty(2, 1, 3, 512, dtype=torch.bfloat16), torch.empty(2, 1, 3)
    found = sparse_mla_decode(**case.arguments(), scale=SCALE, out=out, lse=lse)
    assert (found[0].data_ptr(), found[1].data_ptr()) == (out.data_ptr(), lse.data_ptr())


def test_rows_of_a_hot_cache_are_read_where_they_lie() -> None:
    geometry = Geometry(seats=2, hot_rows=128, top_k=64)
    packed, padded = (HotCache(geometry, [2], MLA_FP8.aligned(align), "cpu") for align in (16, 128))
    case = make("fp8", 8, top_k=64, rows=2 * 192)
    for cache in (packed, padded):
        cache.rows[0][1] = case.rows
        found = sparse_mla_decode(case.q, cache.rows[0][1], case.picks, scale=SCALE)
        torch.testing.assert_close(found[0].double(), case.oracle()[0], rtol=5e-3, atol=1e-4)
    assert padded.rows[0].stride(1) == 768


@pytest.mark.parametrize("sink", [None, torch.tensor([1.0, -torch.inf, torch.inf, 4.0])])
def test_parts_merge_to_the_whole(sink: torch.Tensor | None) -> None:
    case = make("f32", 4, top_k=100)
    q = case.q.double()
    pieces = [case.picks[..., start:stop].contiguous() for start, stop in ((0, 1), (1, 60), (60, 100))]
    pieces.append(torch.full_like(pieces[0], -1))
    parts = [sparse_mla_decode(q, case.rows, piece, scale=SCALE) for piece in pieces]
    whole = sparse_mla_decode(q, case.rows, case.picks, scale=SCALE, sink=sink)
    for found, wanted in zip(merge_lse(parts, sink=sink), whole, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_a_merge_writes_where_told() -> None:
    part = (torch.ones(1, 1, 2, 512), torch.zeros(1, 1, 2))
    found = merge_lse([part, (part[0] * 3, part[1].clone())], out=part[0], lse=part[1])
    assert found[0] is part[0]
    assert part[0].unique().tolist() == [2.0]
    torch.testing.assert_close(part[1], torch.full((1, 1, 2), 2.0).log())


def test_an_empty_part_may_hold_anything() -> None:
    good = (torch.ones(1, 1, 1, 512), torch.zeros(1, 1, 1))
    empty = (torch.full((1, 1, 1, 512), torch.nan), torch.full((1, 1, 1), -torch.inf))
    out, lse = merge_lse([empty, good])
    assert (out == 1).all()
    assert float(lse) == 0
    out, lse = merge_lse([empty, empty])
    assert (out == 0).all()
    assert float(lse) == -torch.inf


def test_a_number_that_went_wrong_is_not_hidden_by_a_merge() -> None:
    good = (torch.ones(1, 1, 1, 512), torch.zeros(1, 1, 1))
    bad = (torch.ones(1, 1, 1, 512), torch.full((1, 1, 1), torch.nan))
    out, lse = merge_lse([good, bad])
    assert out.isnan().all()
    assert lse.isnan().all()


def test_every_wrong_argument_is_named_at_once() -> None:
    case = make("fp8", 8)

    def call(**changed: object) -> Callable[[], object]:
        return lambda: sparse_mla_decode(**({"scale": SCALE} | case.arguments() | changed))  # type: ignore[arg-type]

    assert refused_fields(call(q=case.q[..., :512], rows=case.rows[:, :640])) == ["q.shape", "rows.shape"]
    assert refused_fields(call(q=case.q.half())) == ["q.dtype"]
    assert refused_fields(call(q=case.q.repeat(1, 9, 17, 1))) == ["query_rows", "heads"]
    assert refused_fields(call(q=case.q[:0])) == ["batch"]
    assert refused_fields(call(rows=case.rows.int())) == ["rows.dtype"]
    assert refused_fields(call(rows=torch.zeros(4, 672, dtype=torch.uint8)[:, 8:664])) == ["rows.stride"]
    assert refused_fields(call(picks=case.picks[:1].long(), scale=torch.nan, max_sms=-1)) == [
        "picks.shape",
        "picks.dtype",
        "scale",
        "max_sms",
    ]
    assert refused_fields(call(picks=case.picks[0])) == ["picks.shape"]
    assert refused_fields(call(picks=case.picks[..., ::2])) == ["picks.stride"]
    assert refused_fields(call(picks=case.picks[..., :0])) == ["picks.shape"]
    assert refused_fields(call(sink=torch.zeros(7), counts=torch.zeros(2, 1))) == ["counts.dtype", "sink.shape"]
    assert refused_fields(call(out=case.q.clone(), lse=torch.zeros(2, 1, 8).double())) == ["out.shape", "lse.dtype"]


def test_what_is_said_of_a_wrong_call_points_at_it() -> None:
    case = make("fp8", 8)

    def told(**changed: object) -> str:
        with pytest.raises(InvalidInput) as raised:
            sparse_mla_decode(**(case.arguments() | {"scale": SCALE} | changed))  # type: ignore[arg-type]
        return str(raised.value)

    assert told(q=case.q[:0]) == "batch is 0: must be 1 to 1024; leave the call out: there is nothing to do"
    batch = case.q.shape[0]
    assert f"must have the batch and the query rows of q, ({batch + 1}, " in told(q=torch.cat([case.q, case.q[:1]]))
    assert "must have room for a pick; pass -1" in told(picks=case.picks[..., :0])
    many = case.picks[..., :1].expand(-1, -1, MAX_PICKS + 1)
    assert f"must have at most {MAX_PICKS} picks a query; split them, and merge_lse" in told(picks=many)
    assert told(q=case.q.to("meta")) == "q.device is meta: must be cpu, where the rows are; move it there"


def test_what_is_no_tensor_is_refused() -> None:
    case = make("fp8", 8)
    wrong = case.arguments() | {"q": None, "counts": [1], "scale": "x"}
    assert refused_fields(lambda: sparse_mla_decode(**wrong)) == ["q", "counts", "scale"]  # type: ignore[arg-type]


def test_parts_of_half_precision_are_refused() -> None:
    parts = [(torch.zeros(1, 1, 2, 512).half(), torch.zeros(1, 1, 2))]
    assert refused_fields(lambda: merge_lse(parts)) == ["parts[0].out.dtype"]


def test_a_backend_that_cannot_says_which_can() -> None:
    case = make("fp8", 8)
    assert refused_fields(lambda: sparse_mla_decode(**case.arguments(), scale=SCALE, backend="fastest")) == ["backend"]
    assert refused_fields(
        lambda: sparse_mla_decode(**case.arguments(), scale=SCALE, max_sms=100, backend="reference")
    ) == ["max_sms"]
    for name, backend in BACKENDS.items():
        if name != "reference":
            with pytest.raises(InvalidInput, match="use backend reference"):
                sparse_mla_decode(**case.arguments(), scale=SCALE, backend=name)
        assert backend.why
    assert set(AUTO_ORDER) <= set(BACKENDS)


def test_a_package_that_is_not_there_is_named() -> None:
    call = make_call(**make("fp8", 8).arguments(), scale=SCALE, out=None, lse=None, max_sms=0)
    absent = replace(BACKENDS["reference"], name="other", module="no_such_package.of_ours")
    assert absent.missing(call) == "backend other needs the package no_such_package.of_ours"
    assert BACKENDS["reference"].missing(call) == ""


def test_parts_that_do_not_fit_each_other_are_refused() -> None:
    part = (torch.zeros(1, 1, 4, 512), torch.zeros(1, 1, 4))
    assert refused_fields(lambda: merge_lse([])) == ["parts"]
    assert refused_fields(lambda: merge_lse([part] * 5)) == ["parts"]
    assert refused_fields(lambda: merge_lse([part], out=part[1], lse=part[0])) == ["out.shape", "lse.shape"]
    other = (torch.zeros(1, 1, 4, 512).half(), torch.zeros(1, 1, 3))
    assert refused_fields(lambda: merge_lse([part, other], sink=torch.zeros(3))) == [
        "parts[1].out.dtype",
        "parts[1].lse.shape",
        "sink.shape",
    ]
