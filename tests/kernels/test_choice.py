"""The first backend of an order that can answer; where none can, the reason that helps."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kernels import INDEX_FP8, DeviceUnavailable
from hisparse_svc.kernels.choice import first_able, installed, named
from hisparse_svc.kernels.decode import backends
from hisparse_svc.kernels.decode.rows import BF16_ROWS, FP8_ROWS
from hisparse_svc.kernels.index import backends as index_backends


@dataclass
class Fake:
    """Refuses and lacks what it is told to."""

    refused: list[Problem] = field(default_factory=list)
    lacking: str = ""

    def refusals(self, _call: Any) -> list[Problem]:
        return self.refused

    def missing(self, _call: Any) -> str:
        return self.lacking


WRONG = Problem("rows", "fp32 rows", "must be fp8", "convert them")


def test_the_first_that_can_is_taken() -> None:
    able = Fake()
    assert first_able([Fake(lacking="no GPU"), Fake([WRONG]), able, Fake()], None) is able


def test_a_wrong_call_is_said_before_what_the_machine_lacks() -> None:
    with pytest.raises(InvalidInput, match="must be fp8") as refused:
        first_able([Fake(lacking="no GPU"), Fake([WRONG])], None)
    assert list(refused.value.problems) == [WRONG]


def test_what_an_absent_backend_would_refuse_is_not_held_against_the_call() -> None:
    with pytest.raises(DeviceUnavailable, match="no GPU; no wheel; use CPU tensors"):
        first_able([Fake([WRONG], lacking="no GPU"), Fake(lacking="no wheel")], None)


def test_a_named_one_is_never_replaced() -> None:
    backends = {"wheel": Fake(lacking="no wheel"), "strict": Fake([WRONG], lacking="no GPU")}
    with pytest.raises(DeviceUnavailable, match="no wheel; leave backend out"):
        named("wheel", backends, None)
    with pytest.raises(InvalidInput, match="must be fp8"):
        named("strict", backends, None)
    with pytest.raises(InvalidInput, match="must be auto or one of wheel, strict"):
        named("weel", backends, None)


def test_a_module_of_a_package_that_is_not_there_is_not_installed() -> None:
    assert installed("json.decoder")
    assert not installed("json.no_such_module")
    assert not installed("no_such_package.of_ours")


@dataclass
class FakeDecode:
    """A call on a GPU that is not here, as far as it is asked about one."""

    stored: Any
    q: Any = field(default_factory=lambda: SimpleNamespace(is_cuda=True, device="cuda:0", dtype=torch.bfloat16))
    rows: Any = None
    top_k: int = 2048
    max_sms: int = 0


@pytest.mark.parametrize(
    ("capability", "fp8", "bf16"),
    [
        ((7, 5), None, None),
        ((8, 0), None, "triton"),
        ((8, 9), "triton", "triton"),
        ((9, 0), "cuda", "cuda"),
        ((10, 0), "triton", "triton"),
        ((12, 0), "triton", "triton"),
    ],
)
def test_attention_takes_what_its_gpu_runs(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], fp8: str | None, bf16: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(backends, "installed", lambda _: True)
    for stored, name in ((FP8_ROWS, fp8), (BF16_ROWS, bf16)):
        call: Any = FakeDecode(stored, rows=torch.zeros((64, stored.row_bytes), dtype=torch.uint8))
        if name is None:
            with pytest.raises(DeviceUnavailable, match=f"compute capability {capability[0]}.{capability[1]}"):
                backends.choose("auto", call)
        else:
            assert backends.choose("auto", call).name == name


def test_attention_does_without_a_package_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(backends, "installed", lambda module: module != "cuda.core")
    call: Any = FakeDecode(FP8_ROWS, rows=torch.zeros((64, 656), dtype=torch.uint8))
    assert backends.choose("auto", call).name == "triton"
    with pytest.raises(DeviceUnavailable, match=r"cuda needs the package cuda\.core"):
        backends.choose("cuda", call)


@pytest.mark.parametrize(("capability", "name"), [((9, 0), "cuda"), ((10, 0), "deep_gemm"), ((8, 0), None)])
def test_the_indexer_takes_what_its_gpu_runs(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], name: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(index_backends, "installed", lambda _: True)
    q, pages = SimpleNamespace(is_cuda=True, device="cuda:0"), torch.zeros((1, INDEX_FP8.page_bytes))
    keys = SimpleNamespace(stored=INDEX_FP8, pages=pages)
    call: Any = SimpleNamespace(q=q, keys=keys, heads=64, query_rows=1)
    if name is None:
        with pytest.raises(DeviceUnavailable, match=r"compute capability 8\.0"):
            index_backends.choose("auto", call)
    else:
        assert index_backends.choose("auto", call).name == name
    call.heads = 40
    with pytest.raises(InvalidInput, match="must be 32 or 64 for backend deep_gemm"):
        index_backends.choose("deep_gemm", call)
