"""What kernels are launched with is what they take: as many arguments, of the sizes and element types in the source.

Without a GPU: launches are written down, and compared with the parameters that the CUDA source names.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hisparse_svc.engine import MLA_FP8, HotCache
from hisparse_svc.kernels import Geometry, HostRows, SplitPicks
from hisparse_svc.kernels.decode.call import make_call

from tests.kernels.decode_cases import SCALE, make
from tests.kernels.index_cases import index_case

if TYPE_CHECKING:
    from torch import Tensor

pytest.importorskip("cuda.core", reason="cuda-core is not installed: make setup-engine")
from hisparse_svc.kernels import cuda
from hisparse_svc.kernels.cuda import decode, index, launch

SOURCES = Path(cuda.__file__).parent
SCALARS = {"int": ctypes.c_int32, "u32": ctypes.c_uint32, "i64": ctypes.c_int64, "float": ctypes.c_float}
ELEMENTS = {
    "u8": (torch.uint8, torch.float8_e4m3fn, torch.float32, torch.bfloat16),
    "int": (torch.int32,),
    "int2": (torch.int32,),
    "uint2": (torch.int32,),
    "i64": (torch.int64,),
    "float": (torch.float32,),
    "bf16": (torch.bfloat16,),
    "word": (torch.int32, torch.int64),
}


def parameters(source: str, kernel: str) -> list[str]:
    """Parameters of a kernel, as its source has them, macros written out."""
    text = (SOURCES / source).read_text(encoding="utf-8")
    found = re.search(rf"__global__[^;{{]*?\b{kernel}\(([^)]*)\)", text)
    assert found, f"{source} has no kernel {kernel}"
    everything = "\n".join(path.read_text(encoding="utf-8") for path in sorted(SOURCES.glob("*.cuh")))
    macros = dict(re.findall(r"#define (\w+_PARAMETERS)\s+((?:[^\n]*\\\n)*[^\n]*)", everything))
    listed = re.sub(r"\w+_PARAMETERS", lambda name: macros[name[0]].replace("\\\n", " "), found[1])
    return [" ".join(one.replace("__restrict__", " ").split()) for one in listed.split(",")]


class Launches:
    """Writes launches down, beside the tensors whose addresses they may name."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.written: list[tuple[str, str, tuple[object, ...]]] = []
        for module in (launch, index, decode):
            patch.setattr(module, "load_kernel", self._load)
        for module in (launch, index):
            patch.setattr(module, "shared_memory_bytes", lambda _: 232_448)
        for name, value in {
            "current_stream": None,
            "current_device": 0,
            "get_device_capability": (9, 0),
            "get_device_properties": SimpleNamespace(multi_processor_count=132),
        }.items():
            patch.setattr(torch.cuda, name, lambda *_, value=value: value)

    def _load(self, _device: int, source: str, kernel: str, *_: Any, **__: Any) -> Any:
        def write(_stream: None, _blocks: int, *arguments: object, early: bool = False) -> None:
            assert isinstance(early, bool)
            self.written.append((source, kernel, arguments))

        return SimpleNamespace(launch=write)

    def compare(self, tensors: list[Tensor]) -> list[str]:
        """Compare each with its kernel's parameters, and give the kernels."""
        for source, kernel, arguments in self.written:
            taken = parameters(source, kernel)
            assert len(arguments) == len(taken), (source, kernel)
            for argument, parameter in zip(arguments, taken, strict=True):
                kind = parameter.removeprefix("const ").split(" ")[0].rstrip("*")
                if "*" not in parameter:
                    assert type(argument) is SCALARS[kind], (source, kernel, parameter)
                elif argument != 0:  # what is left out
                    at = [tensor for tensor in tensors if _holds(tensor, argument)]
                    assert at, (source, kernel, parameter, "no tensor of the call")
                    assert at[0].dtype in ELEMENTS[kind], (source, kernel, parameter, at[0].dtype)
        return [kernel for _, kernel, _ in self.written]


def _holds(tensor: Tensor, address: object) -> bool:
    start = tensor.untyped_storage().data_ptr()
    return isinstance(address, int) and start <= address < start + tensor.untyped_storage().nbytes()


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    return Launches(monkeypatch)


def _tensors(*holders: object) -> list[Tensor]:
    """Tensors of these, and of what they hold."""
    found = []
    for holder in holders:
        if isinstance(holder, torch.Tensor):
            found.append(holder)
        elif hasattr(holder, "__dict__"):
            found += _tensors(*vars(holder).values())
    return found


@pytest.mark.parametrize("context", [512, 100_000], ids=["table", "bitmap"])
def test_swap_in_and_backup(launches: Launches, context: int) -> None:
    geometry = Geometry(seats=2, hot_rows=64, top_k=8, context_tokens=context)
    cache, host = HotCache(geometry, [2], MLA_FP8, "cpu"), HostRows.allocate(8, 2, 656)
    split, state, plan = SplitPicks.allocate(geometry, 2, "cpu"), cache.state, cache.plan
    rows, pages = torch.zeros((2, 5, 656), dtype=torch.uint8), torch.zeros(1, dtype=torch.int32)
    for parts in (None, split):
        launch.resolve(geometry, cache.words[0], state, plan, split=parts)
        launch.gather(geometry, host, cache.rows[0], state, plan, layers=range(1, 2), blocks=8, between=parts)
    launch.append(geometry, cache.rows[0][1], state, plan, rows[:, :1])
    launch.backup(geometry, host, cache.rows[0], state, plan)
    launch.backup_pages(geometry, host, rows, pages, first_token=3, first_layer=0)
    kernels = launches.compare(_tensors(cache.words, cache.rows[0], state, plan, host, split, rows, pages))
    assert kernels == ["resolve", "gather"] * 2 + ["append", "backup", "backup_pages"]


def test_the_indexer(launches: Launches) -> None:
    case = index_case([100, 3], heads=64)
    values, pages = torch.zeros((2, 1, 128)), torch.zeros(1, dtype=torch.int32)
    index.logits(case.call)
    index.top_k(case.geometry, case.state, case.plan, case.logits)
    index.append_keys(*case.arguments[:4], values, page_map=case.state.page_map)
    index.write_keys(case.keys, values[:, 0], pages)
    kernels = launches.compare(_tensors(case.call, values, pages))
    assert kernels == ["index_logits", "index_top_k", "append_keys", "write_keys"]


@pytest.mark.parametrize("kind", ["fp8", "bf16"])
def test_attention_and_merging(launches: Launches, kind: str) -> None:
    sink, calls = torch.zeros(128), []
    for heads in (1, 8, 16, 32, 64, 128):
        for batch in (1, 64):
            case = make(kind, heads, batch=batch, top_k=64, rows=64)
            counts = torch.ones((batch, 1), dtype=torch.int32)
            more = {"sink": sink[:heads], "counts": counts, "out": None, "lse": None, "max_sms": 0}
            calls.append(make_call(**(case.arguments() | more), scale=SCALE))
            decode.sparse_mla_decode(calls[-1])
    parts = [(call.out, call.lse) for call in calls[:2]]
    decode.merge_lse(parts[:1] * 3, sink[:1], *parts[1])
    kernels = launches.compare(_tensors(*calls))
    assert kernels[-1] == "merge"
    assert len(set(kernels)) > 2, "several kernels, one for each range of heads"
