"""Sparse MLA decode on a GPU: every backend against float64, at every split, with NaN where nothing may be read."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hisparse_svc import InvalidInput
from hisparse_svc.kernels import DeviceUnavailable, merge_lse, sparse_mla_decode
from hisparse_svc.kernels.cuda import decode
from hisparse_svc.kernels.cuda.decode_shapes import block_shapes
from hisparse_svc.kernels.decode.call import make_call
from hisparse_svc.kernels.split import PickPart

from tests.kernels.decode_cases import SCALE, Case, edge_cases, make

pytestmark = pytest.mark.gpu

KINDS = ("fp8", "bf16")
TRITON_CASES = ("plain", "no pick at all", "scales from tiny to huge", "infinite sink", "counts", "no row ever written")
"""Of the edge cases: Triton compiles anew for most of the others."""
OUT_ERROR = 5e-3
"""Of the norm, against float64: what bfloat16 queries and outputs leave; FP8 rows are dequantised without more."""
LSE_ERROR = 3e-4
"""Of 1 + |LSE|: FP8 blocks of many heads round scales to f16."""


def _run(case: Case, backend: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and LSE on the GPU, twice, into poisoned memory: the same bits."""
    on_gpu = case.to("cuda")
    found = []
    for _ in range(2):
        out = torch.full((*case.q.shape[:3], 512), torch.nan, dtype=torch.bfloat16, device="cuda")
        lse = torch.full(case.q.shape[:3], torch.nan, device="cuda")
        try:
            sparse_mla_decode(**on_gpu.arguments(), scale=SCALE, out=out, lse=lse, backend=backend)
        except DeviceUnavailable as reason:
            pytest.skip(str(reason))
        found.append((out.cpu(), lse.cpu()))
    assert torch.equal(found[0][0].view(torch.int16), found[1][0].view(torch.int16))
    assert torch.equal(found[0][1].view(torch.int32), found[1][1].view(torch.int32))
    return found[0]


def _compare(
    found: tuple[torch.Tensor, torch.Tensor],
    case: Case,
    what: str,
    *,
    most: float = OUT_ERROR,
    most_lse: float = LSE_ERROR,
) -> None:
    out, lse = (part.double() for part in found)
    wanted_out, wanted_lse = case.oracle()
    empty = wanted_lse == -torch.inf
    assert bool((lse[empty] == -torch.inf).all()), f"{what}: an empty selection has LSE -inf"
    assert bool((out[empty] == 0).all()), f"{what}: an empty selection gives 0"
    off = (lse - wanted_lse).abs() / (1 + wanted_lse.abs())
    lse_error = float(off[~empty].max()) if not bool(empty.all()) else 0.0
    assert lse_error < most_lse, f"{what}: LSE is off by {lse_error:.1e}"
    norm = wanted_out.norm(dim=-1)
    error = (out - wanted_out).norm(dim=-1)
    assert bool((error[norm == 0] == 0).all()), f"{what}: what must be 0 is not"
    worst = float((error / norm)[norm > 0].max()) if bool((norm > 0).any()) else 0.0
    assert worst < most, f"{what}: the worst head is off by {worst:.1e}"


@pytest.mark.parametrize("heads", [8, 128])
@pytest.mark.parametrize("kind", KINDS)
def test_the_wheel_where_its_rules_hold(kind: str, heads: int) -> None:
    for name, case in edge_cases(kind, heads, top_k=256).items():
        if case.picks.shape[2] % 128 == 0:
            found = _run(case.poisoned(), "flashmla")
            # It rounds scales to bfloat16: logits of 20 are off by several hundredths.
            _compare(found, case, f"flashmla {kind} {heads} heads, {name}", most=5e-2, most_lse=5e-2)
    with pytest.raises((InvalidInput, DeviceUnavailable), match=r"multiple of|package"):
        sparse_mla_decode(**make(kind, heads, top_k=100).to("cuda").arguments(), scale=SCALE, backend="flashmla")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("backend", "heads"), [*(("cuda", heads) for heads in (8, 11, 16, 24, 64, 128)), ("triton", 11), ("triton", 64)]
)
def test_edge_cases(backend: str, kind: str, heads: int) -> None:
    for name, plain in edge_cases(kind, heads).items():
        if backend == "triton" and name not in TRITON_CASES:
            continue
        case = plain.poisoned()
        _compare(_run(case, backend), case, f"{backend} {kind} {heads} heads, {name}")


@pytest.mark.parametrize("kind", KINDS)
def test_every_block_at_every_split(kind: str) -> None:
    for shape in block_shapes(kind):
        case = make(kind, shape.heads, batch=3, top_k=600, rows=1000, seed=shape.heads).poisoned()
        call = make_call(**case.to("cuda").arguments(), scale=SCALE, out=None, lse=None, max_sms=0)
        for splits in shape.splits:
            decode.sparse_mla_decode(call, shape=shape, splits=splits)
            found = (call.out.cpu(), call.lse.cpu())
            _compare(found, case, f"{shape.source} {kind} {shape.heads} heads, {splits} splits")
            call.out.fill_(torch.nan)
            call.lse.fill_(torch.nan)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("counts", [(0, 0, 0), (300, 0, 300), (0, 300, 150), (299, 1, 33)], ids=str)
def test_late_picks_come_behind_the_others(kind: str, counts: tuple[int, int, int]) -> None:
    for shape in block_shapes(kind):
        case = make(kind, shape.heads, batch=3, top_k=600, rows=1000, seed=shape.heads)
        early, late = case.picks[..., :300], case.picks[..., 300:]
        number = torch.arange(300)
        others = torch.tensor([17, 300, 250])
        masked = [
            torch.where(number < torch.tensor(count).view(3, 1, 1), part, -1)
            for part, count in ((early, others.tolist()), (late, counts))
        ]
        whole = replace(case, picks=torch.cat(masked, -1).contiguous()).poisoned()
        on_gpu = replace(whole, picks=early.contiguous()).to("cuda")
        call = make_call(**on_gpu.arguments(), scale=SCALE, out=None, lse=None, max_sms=0)
        late_counts = torch.tensor(counts, dtype=torch.int32, device="cuda").view(3, 1)
        part = PickPart(late.contiguous().cuda(), late_counts)
        call = replace(call, counts=others.int().view(3, 1).cuda(), late=part)
        for splits in shape.splits:
            call.out.fill_(torch.nan)
            call.lse.fill_(torch.nan)
            decode.sparse_mla_decode(call, shape=shape, splits=splits)
            found = (call.out.cpu(), call.lse.cpu())
            _compare(found, whole, f"{shape.source} {kind} {shape.heads} heads, {splits} splits")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, 5, 40, 150])
def test_the_models_top_k_at_several_batches(kind: str, batch: int) -> None:
    case = make(kind, 8, batch=batch, top_k=2048, rows=4160, seed=batch)
    found = sparse_mla_decode(**case.to("cuda").arguments(), scale=SCALE)
    few = [0, batch // 2, batch - 1]
    part = Case(kind, case.q[few], case.rows, case.picks[few])
    _compare((found[0][few].cpu(), found[1][few].cpu()), part, f"{kind} batch {batch}")


def test_no_kernel_spills() -> None:
    for kind in KINDS:
        for shape in block_shapes(kind):
            for splits in (shape.splits[0], shape.splits[-1]):
                for late in (False, True):
                    assert decode.decode_kernel(0, shape, splits, late=late).local_bytes == 0, (shape, splits, late)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_apart_and_a_captured_call(kind: str) -> None:
    case = make(kind, 16).poisoned()
    on_gpu = case.to("cuda")
    wide = torch.full((len(case.rows), case.rows.shape[1] + 112), 0xFF, dtype=torch.uint8, device="cuda")
    wide[:, : case.rows.shape[1]] = on_gpu.rows
    arguments = on_gpu.arguments() | {"rows": wide[:, : case.rows.shape[1]]}
    out, lse = torch.empty(2, 1, 16, 512, dtype=torch.bfloat16, device="cuda"), torch.empty(2, 1, 16, device="cuda")
    sparse_mla_decode(**arguments, scale=SCALE, out=out, lse=lse)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sparse_mla_decode(**arguments, scale=SCALE, out=out, lse=lse)
    eager = (out.clone(), lse.clone())
    out.fill_(torch.nan)
    graph.replay()
    assert torch.equal(out, eager[0])
    assert torch.equal(lse, eager[1])
    _compare((out.cpu(), lse.cpu()), case, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_hits_and_misses_merge_to_the_whole(kind: str) -> None:
    case = make(kind, 8, top_k=256)
    on_gpu = case.to("cuda")
    hit = torch.rand(case.picks.shape, generator=torch.Generator().manual_seed(1)).cuda() < 0.9
    parts = [
        sparse_mla_decode(on_gpu.q, on_gpu.rows, torch.where(mask, on_gpu.picks, -1), scale=SCALE)
        for mask in (hit, ~hit)
    ]
    out, lse = merge_lse(parts)
    _compare((out.cpu(), lse.cpu()), case, kind)
    empty = (torch.full_like(out, torch.nan), torch.full_like(lse, -torch.inf))
    sink = torch.linspace(-2, 9, 8)
    sink[0], sink[1] = torch.inf, -torch.inf
    found = merge_lse([empty, *parts], sink=sink.cuda(), out=out, lse=lse)
    _compare((found[0].cpu(), found[1].cpu()), replace(case, sink=sink), f"{kind} with a sink")
    out, lse = merge_lse([empty, empty], sink=sink.cuda())
    assert bool((out == 0).all())
    assert bool((lse == -torch.inf).all())


@pytest.mark.parametrize("most", [1, 100, 124, 1000])
def test_fewer_sms_give_the_same_answer(most: int) -> None:
    case = make("fp8", 16, batch=70, top_k=300)
    on_gpu = case.to("cuda")
    out, lse = sparse_mla_decode(**on_gpu.arguments(), scale=SCALE, max_sms=most)
    _compare((out.cpu(), lse.cpu()), case, f"{most} SMs")


def test_what_a_gpu_cannot_do_is_refused() -> None:
    case = make("f32", 8).to("cuda")
    with pytest.raises(InvalidInput, match="backend reference"):
        sparse_mla_decode(**case.arguments(), scale=SCALE, backend="cuda")
    out, _ = sparse_mla_decode(**case.arguments(), scale=SCALE)  # auto takes the reference for fp32 rows
    assert not bool(out.isnan().any())
