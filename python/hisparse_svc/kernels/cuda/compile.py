"""Source and constants → cubin → kernel.

::

    resolve_table.cu  +  {HOT: 4096, …}  +  sm_90  ──►  cache ──hit──► cubin ──► kernel of this device
                                                          └─miss──► NVRTC ──┘
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisparse_svc.kernels.cuda import cache
from hisparse_svc.kernels.devices import demand_cuda
from hisparse_svc.kernels.errors import CompileFailed, DeviceUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

__all__ = ["MIN_SM", "Kernel", "arch_of", "compile_cubin", "inlined_source", "load_kernel", "shared_memory_bytes"]

MIN_SM = 80
"""Oldest compute capability (major, then minor) that has the instructions used: warp-wide reductions."""

_SOURCES = Path(__file__).parent
_HEADERS = (
    "common.cuh",
    "words.cuh",
    "parts.cuh",
    "rows.cuh",
    "far.cuh",
    "cluster.cuh",
    "hopper.cuh",
    "top_k_rounds.cuh",
    "wgmma.cuh",
    "decode.cuh",
    "few_scores.cuh",
    "wide_block.cuh",
    "wide_merge.cuh",
    "many_block.cuh",
    "many_scores.cuh",
)
_LARGEST_CARVEOUT = 100
_PORTABLE_CLUSTER = 8


def _core() -> Any:
    try:
        from cuda import core  # noqa: PLC0415 - only where a GPU is used
    except ImportError as error:
        text = "CUDA kernels need the package cuda-core; install hisparse-svc[engine]"
        raise DeviceUnavailable(text) from error
    return core


@functools.cache
def arch_of(device: int) -> str:
    """Give the compiler's name for a device, `sm_90`.

    Raises:
        DeviceUnavailable: No CUDA, or the device is too old.
    """
    import torch  # noqa: PLC0415 - the kernels' tensors come from it, but compiling does not

    demand_cuda("use CPU tensors, which run the reference kernels")
    major, minor = torch.cuda.get_device_capability(device)
    if major * 10 + minor < MIN_SM:
        name = torch.cuda.get_device_name(device)
        text = f"{name} has compute capability {major}.{minor}; the kernels need {MIN_SM // 10}.{MIN_SM % 10} or newer"
        raise DeviceUnavailable(text)
    return f"sm_{major}{minor}"


@functools.cache
def shared_memory_bytes(device: int) -> int:
    """Give the bytes of shared memory that one block of this device may ask for."""
    import torch  # noqa: PLC0415

    properties: Any = torch.cuda.get_device_properties(device)  # torch's stubs lack the field
    return int(properties.shared_memory_per_block_optin)


def compile_cubin(source: str, constants: Mapping[str, int], arch: str) -> bytes:
    """Compile a file of this folder, or take its cubin from the cache.

    Args:
        source: File name.
        constants: What is defined for it.
        arch: `sm_90`.

    Raises:
        CompileFailed: With the compiler's log.
    """
    core = _core()
    text = inlined_source(source)
    key = _key(text, constants, arch)
    if (code := cache.load(key)) is not None:
        return code
    defines = [(name, str(value)) for name, value in sorted(constants.items())]
    options = core.ProgramOptions(name=source, arch=arch, std="c++17", define_macro=defines)
    try:
        code = bytes(core.Program(text, "c++", options).compile("cubin").code)
    except Exception as error:  # cuda-core raises several kinds; all carry the log
        raise CompileFailed(source, arch, str(error)) from error
    cache.store(key, code)
    return code


def inlined_source(source: str) -> str:
    """Give a file of this folder with its headers as one text: what is hashed is what is compiled."""
    before = [name for name in _HEADERS if name != source and _includes(source, name)]
    return "\n".join(_inlined(name) for name in (*before, source))


def _inlined(name: str) -> str:
    lines = (_SOURCES / name).read_text(encoding="utf-8").splitlines()
    own = [line for line in lines if not line.startswith(('#include "', "#pragma once"))]
    return "\n".join([f'#line 1 "{name}"', *own])


def _includes(source: str, header: str) -> bool:
    text = (_SOURCES / source).read_text(encoding="utf-8")
    named = [line.split('"')[1] for line in text.splitlines() if line.startswith('#include "')]
    return header in named or any(_includes(name, header) for name in named)


def _key(text: str, constants: Mapping[str, int], arch: str) -> str:
    from cuda.bindings import nvrtc  # noqa: PLC0415

    compiler = nvrtc.nvrtcVersion()
    parts = (text, repr(sorted(constants.items())), arch, repr(compiler), repr(_driver_version()))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _driver_version() -> object:
    from cuda.bindings import driver  # noqa: PLC0415

    try:
        return driver.cuDriverGetVersion()[1]
    except RuntimeError:  # no driver on this machine: cubins are only compiled here
        return None


class Kernel:
    """One kernel on one device, with the shared memory it asks for."""

    def __init__(
        self, device: int, cubin: bytes, name: str, *, threads: int, shared_bytes: int, beside: bool, cluster: int
    ) -> None:
        from cuda.bindings import driver  # noqa: PLC0415

        core = _core()
        self._core = core
        self._threads = threads
        self._shared_bytes = shared_bytes
        self._device = device
        core.Device(device).set_current()
        self._code = core.ObjectCode.from_cubin(cubin)
        self._kernel = self._code.get_kernel(name)
        attribute = driver.CUfunction_attribute
        wanted = {attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: shared_bytes} if shared_bytes else {}
        if beside:
            # It shares SMs with a resolver, whose block needs nearly all the shared memory an SM can have.
            wanted[attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT] = _LARGEST_CARVEOUT
        if cluster > _PORTABLE_CLUSTER:
            wanted[attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED] = 1
        handle = driver.CUkernel(int(self._kernel.handle))
        for name_of, value in wanted.items():
            (status,) = driver.cuKernelSetAttribute(name_of, value, handle, driver.CUdevice(device))
            if status != driver.CUresult.CUDA_SUCCESS:
                raise DeviceUnavailable(f"the driver refuses {value} for {name_of.name}: {status.name}")

    @property
    def registers(self) -> int:
        """Registers of one thread."""
        return int(self._kernel.attributes.num_regs)

    @property
    def local_bytes(self) -> int:
        """Bytes of one thread that did not fit in registers."""
        return int(self._kernel.attributes.local_size_bytes)

    def launch(self, stream: torch.cuda.Stream, blocks: int, *arguments: object, early: bool = False) -> None:
        """Launch it on a torch stream of its device; captured where that stream is being captured.

        Args:
            stream: Where to.
            blocks: Blocks of the grid.
            arguments: What the kernel takes.
            early: It may start as soon as the kernel in front lets it, which it must be written for.
        """
        import torch  # noqa: PLC0415 - as in `arch_of`

        core = self._core
        config = core.LaunchConfig(
            grid=blocks,
            block=self._threads,
            shmem_size=self._shared_bytes,
            programmatic_stream_serialization=early,
        )
        with torch.cuda.device(self._device):  # the default stream is that of whichever device is current
            core.launch(_stream(stream.cuda_stream), config, self._kernel, *arguments)


@functools.lru_cache(maxsize=64)
def _stream(handle: int) -> Any:
    """Give cuda-core's view of a torch stream."""
    core = _core()
    return core.Stream.from_handle(handle) if handle else core.LEGACY_DEFAULT_STREAM


@functools.lru_cache(maxsize=512)
def load_kernel(
    device: int,
    source: str,
    name: str,
    constants: tuple[tuple[str, int], ...],
    *,
    threads: int,
    shared_bytes: int = 0,
    beside: bool = False,
    cluster: int = 1,
    own_arch: bool = False,
) -> Kernel:
    """Compile and load a kernel once per device and set of constants.

    Args:
        device: CUDA device number.
        source: File name in this folder.
        name: Kernel in it.
        constants: What is defined for it, `THREADS` and `SHARED_BYTES` excepted.
        threads: Threads of a block.
        shared_bytes: Dynamic shared memory of a block.
        beside: It runs beside kernels that need much shared memory.
        cluster: Blocks of a cluster; the source declares them.
        own_arch: It uses instructions that this architecture alone has (`sm_90a`).

    Raises:
        CompileFailed: With the compiler's log.
        DeviceUnavailable: No CUDA, a device too old, or one that cannot give that much shared memory.
    """
    import torch  # noqa: PLC0415 - as in `arch_of`

    arch = arch_of(device) + ("a" if own_arch else "")
    defines = dict(constants, THREADS=threads, SHARED_BYTES=shared_bytes)
    code = compile_cubin(source, defines, arch)
    with torch.cuda.device(device):  # the caller's device is current again behind it
        return Kernel(device, code, name, threads=threads, shared_bytes=shared_bytes, beside=beside, cluster=cluster)
