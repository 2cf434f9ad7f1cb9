"""A GPU that is not there is refused by name with what to do, wherever memory is allocated or work is timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hisparse_svc import HiSparseError, InvalidInput
from hisparse_svc.engine import (
    MLA_FP8,
    DecodeSession,
    DecodeShape,
    Geometry,
    HostCopy,
    HotCache,
    ReaderFence,
    Variants,
    WriterFence,
)
from hisparse_svc.engine.registration import Cuda
from hisparse_svc.kernels import (
    DeviceUnavailable,
    HostRows,
    IndexKeys,
    SeatState,
    SplitPicks,
    StepPlan,
    usable_device,
)

if TYPE_CHECKING:
    from collections.abc import Callable

GEOMETRY = Geometry(seats=2, hot_rows=64, top_k=16, context_tokens=512)
SHAPE = DecodeShape(GEOMETRY, (1,), MLA_FP8, pages=4)

NEED_A_GPU: dict[str, Callable[[], object]] = {
    "session": lambda: DecodeSession(SHAPE, HostCopy.allocate(SHAPE), "cuda"),
    "cache": lambda: HotCache(GEOMETRY, [1], MLA_FP8, "cuda:0"),
    "state": lambda: SeatState.allocate(GEOMETRY, torch.device("cuda")),
    "plan": lambda: StepPlan.allocate(GEOMETRY, "cuda"),
    "split": lambda: SplitPicks.allocate(GEOMETRY, 1, "cuda"),
    "keys": lambda: IndexKeys.allocate(1, "cuda"),
    "pinned rows": lambda: HostRows.allocate(1, 1, 656, pinned=True),
    "pinned copy": lambda: HostCopy.allocate(SHAPE, pinned=True),
    "writer's fence": lambda: WriterFence("cuda"),
    "reader's fence": lambda: ReaderFence((b"handle",), "cuda:0"),
    "variants": lambda: Variants({"only": lambda: None}),
}


@pytest.mark.parametrize("name", NEED_A_GPU)
def test_without_a_gpu_it_says_what_to_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceUnavailable, match=r"^there is no CUDA device here; [a-z].*") as raised:
        NEED_A_GPU[name]()
    assert isinstance(raised.value, HiSparseError)


def test_registering_without_a_gpu_says_that_the_cpu_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-core is not installed: make setup-engine")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceUnavailable, match='decode on "cpu" without it'):
        Cuda()


def test_measuring_without_a_gpu_says_where_to(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = pytest.importorskip("hisparse_svc.bench.gpu", reason="cuda-core is not installed: make setup-engine")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceUnavailable, match="on the machine with the GPU"):
        gpu.machine()


def test_a_gpu_of_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert usable_device("cuda:1").index == 1
    with pytest.raises(DeviceUnavailable, match=r"cuda:2 is not here: this machine has 2; use cuda:0 to cuda:1"):
        usable_device("cuda:2")


@pytest.mark.parametrize("name", ["gpu", "mps", "", "cuda:x"])
def test_what_is_no_device_is_refused_without_torchs_own_list(name: str) -> None:
    with pytest.raises(InvalidInput, match='must be "cpu", "cuda" or "cuda:N"') as raised:
        HotCache(GEOMETRY, [1], MLA_FP8, name)
    assert [problem.field for problem in raised.value.problems] == ["device"]
