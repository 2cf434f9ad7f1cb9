"""What is made of a call for the FlashMLA and DeepGEMM wheels, and of their answers: plain stand-ins with their rules.

The wheels themselves run in the GPU tests, on machines that have them.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hisparse_svc.kernels import flashmla
from hisparse_svc.kernels.decode.call import make_call
from hisparse_svc.kernels.index import deep_gemm

from tests.kernels.decode_cases import SCALE, edge_cases, load, make
from tests.kernels.index_cases import index_case

if TYPE_CHECKING:
    from torch import Tensor


def _attend(q: Tensor, keys: Tensor, picks: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Output and LSE of one query, as FlashMLA has them: heads 64 or 128, -1 alone is no pick, LSE of nothing +inf."""
    assert q.shape[0] in {64, 128}
    assert bool(((picks >= 0) & (picks < len(keys)) | (picks == -1)).all())
    chosen = keys[picks[picks >= 0].long()]
    logits = q.double() @ chosen.T * scale
    if not len(chosen):
        return torch.full((q.shape[0], 512), torch.nan), torch.full((q.shape[0],), torch.inf)
    return (logits.softmax(-1) @ chosen[:, :512]).float(), logits.logsumexp(-1).float()


class FlashMla(ModuleType):
    """Stands in for `flash_mla`."""

    def get_mla_metadata(self) -> tuple[str]:
        return ("schedule",)

    def flash_mla_with_kvcache(  # noqa: PLR0917 - as the wheel has them
        self, q: Tensor, pages: Tensor, table: None, lengths: None, width: int, schedule: str, splits: None,
        scale: float, causal: bool, fp8: bool, picks: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        assert (table, lengths, width, schedule, splits, causal, fp8) == (
            None,
            None,
            512,
            "schedule",
            None,
            False,
            True,
        )
        assert pages.shape[1:] == (64, 1, 656)
        assert picks.shape[-1] % 64 == 0
        keys = load(pages.view(torch.uint8).reshape(-1, 656), "fp8")
        found = [[_attend(q[i, j], keys, picks[i, j], scale) for j in range(q.shape[1])] for i in range(len(q))]
        out = torch.stack([torch.stack([out for out, _ in row]) for row in found])
        lse = torch.stack([torch.stack([lse for _, lse in row], dim=1) for row in found])  # [batch, head, query row]
        return out, lse

    def flash_mla_sparse_fwd(self, q: Tensor, rows: Tensor, picks: Tensor, scale: float) -> tuple[Tensor, None, Tensor]:
        assert rows.shape[1:] == (1, 576)
        assert picks.shape == (len(q), 1, picks.shape[2])
        found = [_attend(q[i], rows[:, 0].double(), picks[i, 0], scale) for i in range(len(q))]
        return torch.stack([out for out, _ in found]), None, torch.stack([lse for _, lse in found])


@pytest.mark.parametrize("heads", [8, 64, 65])
@pytest.mark.parametrize("kind", ["fp8", "bf16"])
def test_flashmla_is_asked_by_its_rules_and_answers_by_ours(
    monkeypatch: pytest.MonkeyPatch, kind: str, heads: int
) -> None:
    monkeypatch.setitem(sys.modules, "flash_mla", FlashMla("flash_mla"))
    names = (
        "plain",
        "no pick at all",
        "one request without picks",
        "numbers that are no row",
        "infinite sink",
        "counts",
    )
    cases = edge_cases(kind, heads)
    for name in names:
        case = cases[name]
        call = make_call(**case.arguments(), scale=SCALE, out=None, lse=None, max_sms=0)
        flashmla.sparse_mla_decode(call)
        out, lse = case.oracle()
        torch.testing.assert_close(
            call.out.double(), out, rtol=1e-2, atol=1e-3, msg=lambda text, n=name: f"{n}: {text}"
        )
        torch.testing.assert_close(call.lse.double(), lse, rtol=1e-5, atol=1e-5)


def test_flashmla_gives_every_query_row_its_own() -> None:
    case = make("fp8", 8, batch=3, query_rows=4, top_k=64)
    call = make_call(**case.arguments(), scale=SCALE, out=None, lse=None, max_sms=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "flash_mla", FlashMla("flash_mla"))
        flashmla.sparse_mla_decode(call)
    torch.testing.assert_close(call.lse.double(), case.oracle()[1], rtol=1e-5, atol=1e-5)


class DeepGemm(ModuleType):
    """Stands in for `deep_gemm`: what lies behind a query row's tokens is left as it was, here NaN."""

    def get_num_sms(self) -> int:
        return 132

    def get_paged_mqa_logits_metadata(self, lengths: Tensor, page: int, sms: int) -> tuple[int, int]:
        assert bool((lengths >= 1).all()), "the wheel has no request without a token"
        assert lengths.dtype is torch.int32
        return page, sms

    def fp8_paged_mqa_logits(
        self, *, q: Tensor, kv_cache: Tensor, weights: Tensor, context_lens: Tensor, block_table: Tensor,
        schedule_meta: Any, max_context_len: int,
    ) -> Tensor:  # fmt: skip
        assert schedule_meta == (64, 132)
        pages = kv_cache.view(len(kv_cache), -1)
        keys = pages[:, : 64 * 128].view(torch.float8_e4m3fn).view(-1, 64, 128).double()
        scales = pages[:, 64 * 128 :].contiguous().view(torch.float32).double()
        logits = torch.full((q.shape[0] * q.shape[1], max_context_len), torch.nan)
        for request in range(q.shape[0]):
            table = block_table[request].long()  # an entry outside of the cache would be a fault
            mine, factors = keys[table].flatten(0, 1), scales[table].flatten()
            for row in range(q.shape[1]):
                tokens, at = int(context_lens[request, row]), request * q.shape[1] + row
                products = (mine[:tokens] @ q[request, row].double().T).clamp_min(0)
                logits[at, :tokens] = (products @ weights[at].double() * factors[:tokens]).float()
        return logits


@pytest.mark.parametrize("query_rows", [1, 2])
def test_deep_gemm_is_asked_by_its_rules_and_answers_by_ours(monkeypatch: pytest.MonkeyPatch, query_rows: int) -> None:
    monkeypatch.setitem(sys.modules, "deep_gemm", DeepGemm("deep_gemm"))
    case = index_case([200, 1, 0, 130], heads=32, query_rows=query_rows, padded=[1])
    case.state.page_map[0, 1], case.state.page_map[3, 2] = -1, case.keys.page_count
    case.logits_by("reference")
    wanted = case.logits.clone()
    case.logits.fill_(torch.nan)
    deep_gemm.logits(case.call)
    for request in range(4):
        for row in range(query_rows):
            seen = case.visible(request, row)
            torch.testing.assert_close(case.logits[request, row, :seen], wanted[request, row, :seen])
