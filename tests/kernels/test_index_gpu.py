"""The indexer's kernels against the reference on a CUDA device."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest
import torch
from hisparse_svc.kernels import (
    Geometry,
    IndexKeys,
    SeatState,
    StepPlan,
    append_index_keys,
    index_logits_shape,
    index_top_k,
    reference,
    write_index_keys,
)
from hisparse_svc.kernels.cuda import index as kernels

from tests.kernels.index_cases import index_case

if TYPE_CHECKING:
    from tests.kernels.index_cases import IndexCase

pytestmark = pytest.mark.gpu

CASES = {
    "one": {"lengths": [65_536]},
    "short": {"lengths": [1, 63, 64, 65, 0, 128]},
    "ragged": {"lengths": [5000, 70, 0, 20_000, 1, 9999, 640]},
    "heads32": {"lengths": [3000, 700], "heads": 32},
    "heads8": {"lengths": [3000, 700], "heads": 8},
    "heads40": {"lengths": [3000, 700], "heads": 40},
    "heads128": {"lengths": [3000, 700], "heads": 128},
    "mtp2": {"lengths": [3000, 1, 700], "query_rows": 2},
    "mtp4": {"lengths": [3000, 65, 2, 700], "query_rows": 4},
    "mtp7": {"lengths": [3000, 65, 2, 700], "query_rows": 7, "heads": 32},
    "many": {"lengths": [100 + 7 * at for at in range(300)], "padded": [0, 5, 299]},
    "pitch": {"lengths": [3000, 700], "pitch": 8464},
}


def _check_logits(case: IndexCase, *, tolerance: float = 1e-3) -> None:
    expected = torch.full_like(case.logits, torch.nan)
    kept, case.logits = case.logits, expected
    case.logits_by("reference")
    found, case.logits = kept, kept
    for request in range(case.plan.batch):
        for row in range(case.geometry.query_rows):
            seen = case.visible(request, row)
            one, other = found[request, row, :seen].double(), expected[request, row, :seen].double()
            assert one.isfinite().all(), f"request {request} row {row}"
            size = other.norm() + seen**0.5  # a few logits may cancel
            error = float((one - other).norm() / size) if seen else 0.0
            assert error < tolerance, f"request {request} row {row} of {seen} tokens: {error}"


@pytest.mark.parametrize("name", CASES)
def test_logits_are_the_reference_s_and_nothing_else_is_written(name: str) -> None:
    case = index_case(**CASES[name], device="cuda")
    case.logits_by("cuda")
    _check_logits(case)
    for request in range(case.plan.batch):
        for row in range(case.geometry.query_rows):
            assert case.logits[request, row, case.visible(request, row) :].isnan().all()


@pytest.mark.parametrize("blocks", [1, 3, 132, 500])
def test_a_logit_does_not_depend_on_how_the_work_is_cut(blocks: int) -> None:
    case = index_case([5000, 70, 0, 20_000], device="cuda")
    case.logits_by("cuda")
    whole = case.logits.clone()
    case.logits.fill_(torch.nan)
    kernels.logits(case.call, blocks=blocks)
    assert torch.equal(whole.nan_to_num(7), case.logits.nan_to_num(7))


def test_a_token_without_a_page_scores_minus_infinity() -> None:
    case = index_case([2000, 300], device="cuda")
    seat = int(case.plan.seats[0])
    case.state.page_map[seat, 1] = -1
    case.state.page_map[seat, 3] = case.keys.page_count
    case.logits_by("cuda")
    unmapped = case.logits[0, 0, : case.visible(0, 0)].isneginf().nonzero().flatten().cpu()
    assert unmapped.tolist() == [*range(64, 128), *range(192, 256)][: len(unmapped)]
    assert len(unmapped) == 128
    assert case.logits[1, 0, : case.visible(1, 0)].isfinite().all()


@pytest.mark.skipif(importlib.util.find_spec("deep_gemm") is None, reason="DeepGEMM is not installed")
@pytest.mark.parametrize("name", ["ragged", "heads32", "mtp2"])
def test_deep_gemm_gives_the_reference_s_logits(name: str) -> None:
    case = index_case(**CASES[name], device="cuda")
    case.logits_by("deep_gemm")
    _check_logits(case)


def _scores(kind: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Scores that are hard in a way of their own; `plateau` is what ReLU makes where few tokens score above 0."""
    chance = torch.Generator(device="cuda").manual_seed(KINDS.index(kind))
    normal = torch.randn(shape, generator=chance, device="cuda")
    token = torch.arange(shape[-1], device="cuda").float().expand(shape)
    odd = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 0.0, 1e-42, 3.0], device="cuda")
    return {
        "normal": lambda: normal,
        "negative": lambda: -normal.abs() - 1,
        "plateau": lambda: normal * (normal.abs() > 2.2),
        "steps": (normal * 4).round,
        "equal": lambda: torch.full(shape, 2.5, device="cuda"),
        "two": lambda: (normal > 1.5).float() - 1,
        "wide": lambda: normal.sign() * (normal * 30).exp2(),
        "odd": lambda: odd[torch.randint(0, 7, shape, generator=chance, device="cuda")],
        "few": lambda: normal.masked_fill(normal < 2.5, -torch.inf),
        "ascending": token.clone,
        "descending": lambda: -token,
    }[kind]()


KINDS = ["normal", "negative", "plateau", "steps", "equal", "two", "wide", "odd", "few", "ascending", "descending"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("top_k", "context", "query_rows", "cluster"),
    [
        (2048, 65_536, 1, 2),
        (2048, 65_536, 1, 0),
        (2048, 200_000, 1, 4),
        (2048, 100_000, 2, 1),
        (64, 5000, 1, 8),
        (512, 70_001, 3, 2),
    ],
)
def test_picks_are_the_reference_s(kind: str, top_k: int, context: int, query_rows: int, cluster: int) -> None:
    lengths = [context, context - 1, top_k - 1, top_k, top_k + 1, 0, context // 3, 7]
    geometry = Geometry(seats=len(lengths), hot_rows=8192, top_k=top_k, query_rows=query_rows, context_tokens=context)
    state, plan = SeatState.allocate(geometry, "cuda"), StepPlan.allocate(geometry, "cuda")
    state.lengths[:] = torch.tensor(lengths)
    plan.seats[:] = torch.tensor([2, 0, 5, -1, 7, 1, 4, 6])
    scores = _scores(kind, index_logits_shape(geometry, len(lengths)))
    plan.picks.fill_(-777)
    kernels.top_k(geometry, state, plan, scores, cluster=cluster)
    found = plan.picks.clone()
    reference.index_top_k(geometry, state, plan, scores)
    for request in range(len(lengths)):
        for row in range(query_rows):
            same = torch.equal(found[request, row], plan.picks[request, row])
            assert same, f"request {request} row {row} of length {state.lengths[plan.seats[request]]}"


def test_equal_scores_are_picked_alike_in_a_hundred_replays() -> None:
    geometry = Geometry(seats=64, hot_rows=4096, top_k=2048, context_tokens=65_536)
    state, plan = SeatState.allocate(geometry, "cuda"), StepPlan.allocate(geometry, "cuda")
    state.lengths[:] = 65_536
    plan.seats[:] = torch.randperm(64)
    scores = _scores("steps", index_logits_shape(geometry, 64))
    index_top_k(geometry, state, plan, scores)
    expected = plan.picks.clone()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        index_top_k(geometry, state, plan, scores)
    for replay in range(100):
        plan.picks.fill_(-777)
        graph.replay()
        assert torch.equal(plan.picks, expected), f"replay {replay}"
    best = scores[0, 0].sort(descending=True).values[:2048]
    assert torch.equal(scores[0, 0][expected[0, 0].long()].sort(descending=True).values, best)


def test_a_captured_step_stores_keys_scores_and_picks_at_once() -> None:
    case = index_case([3000, 700, 5000], context_tokens=6000, top_k=512, device="cuda")
    for seat in range(3):  # room behind the end
        pages = case.state.page_map[seat]
        pages[pages < 0] = 0
    values = torch.randn((3, 1, 128), device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        append_index_keys(case.geometry, case.keys, case.state, case.plan, values)
        case.picks_by("cuda")

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(3):
        values.copy_(torch.randn_like(values))
        case.q.copy_(torch.randn(case.q.shape, device="cuda").to(case.q.dtype))
        case.plan.picks.fill_(-777)
        graph.replay()
        _check_logits(case)
        found = case.plan.picks.clone()
        reference.index_top_k(case.geometry, case.state, case.plan, case.logits)
        assert torch.equal(found, case.plan.picks)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_stored_keys_are_the_reference_s_bit_by_bit(dtype: torch.dtype) -> None:
    geometry = Geometry(seats=3, hot_rows=64, top_k=8, query_rows=2, context_tokens=640)
    values = (torch.randn((600, 128)) * torch.logspace(-6, 6, 600).unsqueeze(1)).to(dtype)
    values[5] = 0
    stored = {}
    for device in ("cpu", "cuda"):
        state, plan = SeatState.allocate(geometry, device), StepPlan.allocate(geometry, device)
        keys = IndexKeys.allocate(12, device)
        keys.pages.zero_()
        plan.seats[:] = torch.tensor([2, -1, 0])
        state.lengths[:] = torch.tensor([601, 9, 1])
        state.page_map[0] = torch.tensor([4, 2, -1, 0, 8, 9, 10, 11, 12, 1])
        state.page_map[2, 0] = 7
        write_index_keys(keys, values.to(device), state.page_map[0], first_token=3)
        append_index_keys(geometry, keys, state, plan, values[:6].view(3, 2, 128).to(device))
        stored[device] = keys.pages.cpu()
    assert torch.equal(stored["cpu"], stored["cuda"])
