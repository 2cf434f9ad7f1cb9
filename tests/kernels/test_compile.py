"""Kernels compile for every shape the product has, without a GPU, and a compile that fails says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hisparse_svc.kernels import CompileFailed, DeviceUnavailable, Geometry, HostRows
from hisparse_svc.kernels.cuda import cache, shapes
from hisparse_svc.kernels.cuda.compile import arch_of, compile_cubin
from hisparse_svc.kernels.cuda.decode import SHARED_BYTES, kernel_constants
from hisparse_svc.kernels.cuda.decode_shapes import block_shapes
from hisparse_svc.kernels.placement import gather_threads

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("cuda.core", reason="cuda-core is not installed: make setup-engine")

GEOMETRIES = [
    Geometry(seats=128, hot_rows=4096, top_k=2048),
    Geometry(seats=128, hot_rows=8192, top_k=2048, query_rows=4),
    Geometry(seats=128, hot_rows=6144, top_k=2048, query_rows=2, context_tokens=163_840),
    Geometry(seats=8, hot_rows=8192, top_k=2048, query_rows=4, context_tokens=2**20),
    Geometry(seats=2, hot_rows=32_768, top_k=2048),
    Geometry(seats=2, hot_rows=1088, top_k=96, query_rows=2, context_tokens=5000),
    Geometry(seats=2, hot_rows=64, top_k=16),
]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: f"hot{g.hot_rows}-picks{g.picks}-ctx{g.context_tokens}")
def test_resolvers_compile(geometry: Geometry) -> None:
    for parted in (False, True):
        for resolver in shapes.resolvers(geometry, parted=parted):
            constants = dict(resolver.constants, THREADS=resolver.threads, SHARED_BYTES=resolver.shared_bytes)
            assert compile_cubin(resolver.source, constants, "sm_90").startswith(b"\x7fELF")


@pytest.mark.parametrize(("row_bytes", "layers", "stride"), [(656, 1, 0), (656, 4, 704), (1152, 3, 0), (2304, 1, 0)])
def test_copies_compile(row_bytes: int, layers: int, stride: int) -> None:
    host = HostRows.allocate(1, layers, row_bytes, stride_bytes=stride)
    constants = shapes.geometry_constants(GEOMETRIES[0]) + shapes.row_constants(row_bytes, layers, host, row_bytes)
    assert compile_cubin("backup.cu", dict(constants, THREADS=512, SHARED_BYTES=0), "sm_90").startswith(b"\x7fELF")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize(("row_bytes", "layers"), [(656, 1), (656, 4), (2304, 1)])
def test_gathers_compile_with_and_without_clusters(arch: str, row_bytes: int, layers: int) -> None:
    host = HostRows.allocate(1, layers, row_bytes)
    shape = shapes.geometry_constants(GEOMETRIES[0]) + shapes.row_constants(row_bytes, layers, host, row_bytes)
    for blocks in (1, 8, 16):
        constants = dict(shape + shapes.gather_constants(blocks, 2048), THREADS=gather_threads(blocks), SHARED_BYTES=0)
        assert compile_cubin("gather.cu", constants, arch).startswith(b"\x7fELF")


@pytest.mark.parametrize("rows", ["fp8", "bf16"])
def test_decode_kernels_compile(rows: str) -> None:
    for shape, splits in zip(block_shapes(rows), (1, 2, 3, 4), strict=True):
        own = kernel_constants(shape, splits, late=splits % 2 == 0)
        constants = dict(own, THREADS=shape.threads, SHARED_BYTES=SHARED_BYTES)
        assert compile_cubin(shape.source, constants, "sm_90a").startswith(b"\x7fELF")


def test_short_contexts_get_the_table_and_long_ones_the_bitmap() -> None:
    h200, small = 232_448, 101_376
    assert shapes.resolver_for(GEOMETRIES[0], h200).order == "picks"
    assert shapes.resolver_for(GEOMETRIES[0], small).order == "tokens"
    assert shapes.resolver_for(GEOMETRIES[3], h200).order == "tokens"
    with pytest.raises(DeviceUnavailable, match="shorter context"):
        shapes.resolver_for(GEOMETRIES[3], small)


def test_a_failed_compile_carries_the_log() -> None:
    with pytest.raises(CompileFailed, match="HOT") as raised:
        compile_cubin("resolve_table.cu", {"WORD_BITS": 32}, "sm_90")
    assert "error" in raised.value.log


def test_a_cubin_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HISPARSE_CACHE_DIR", str(tmp_path / "new"))
    resolver = shapes.resolvers(GEOMETRIES[-1])[0]
    constants = dict(resolver.constants, THREADS=resolver.threads, SHARED_BYTES=resolver.shared_bytes)
    first = compile_cubin(resolver.source, constants, "sm_90")
    (stored,) = (tmp_path / "new").iterdir()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert stored.stat().st_mode & 0o077 == 0
    assert compile_cubin(resolver.source, constants, "sm_90") == first
    assert compile_cubin(resolver.source, constants | {"SEATS": 3}, "sm_90").startswith(b"\x7fELF")
    assert len(list((tmp_path / "new").iterdir())) == 2


@pytest.mark.parametrize("damage", ["short", "flipped", "empty", "writable"])
def test_a_cubin_that_cannot_be_trusted_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damage: str
) -> None:
    monkeypatch.setenv("HISPARSE_CACHE_DIR", str(tmp_path))
    cache.store("key", b"code of a kernel")
    assert cache.load("key") == b"code of a kernel"
    path = tmp_path / "key.cubin"
    stored = path.read_bytes()
    if damage == "writable":
        path.chmod(0o666)
    else:
        path.write_bytes({"short": stored[:-1], "flipped": stored[:-1] + b"?", "empty": b""}[damage])
    assert cache.load("key") is None


def test_a_folder_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HISPARSE_CACHE_DIR", str(tmp_path / "file"))
    cache.store("key", b"code")
    assert cache.load("key") is None


def test_a_machine_without_cuda_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(DeviceUnavailable, match="no CUDA device"):
        arch_of.__wrapped__(0)


def test_an_old_gpu_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    with pytest.raises(DeviceUnavailable, match=r"Tesla T4 has compute capability 7\.5; the kernels need 8\.0"):
        arch_of.__wrapped__(0)
