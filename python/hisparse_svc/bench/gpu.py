"""What GPU benchmarks share: a timer, gigabytes of registered host memory, plain kernels, what figures hold for."""

from __future__ import annotations

import ctypes
import datetime
import mmap
import platform
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from cuda.core import Device, Program, ProgramOptions

from hisparse_svc.kernels import demand_cuda

if TYPE_CHECKING:
    from collections.abc import Callable

_CHUNK_BYTES = 8 << 30
_THREADS = 16
_L2_BYTES = 384 << 20
_SPIN_CYCLES = 200_000
_REPLAYS = 11


def machine(device: str = "cuda") -> dict[str, Any]:
    """What the figures hold for.

    Args:
        device: `"cpu"` where a program is only tried: its figures say nothing.

    Raises:
        DeviceUnavailable: There is no GPU to measure.
    """
    if device != "cpu":
        demand_cuda("measure on the machine with the GPU")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "gpu": "none: the CPU's reference kernels" if device == "cpu" else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def plain_kernel(source: Path) -> Any:
    """Compile, for the first device, the kernel that a file is named after: a yardstick beside the product's."""
    Device(0).set_current()
    major, minor = torch.cuda.get_device_capability()
    options = ProgramOptions(arch=f"sm_{major}{minor}", std="c++17")
    return Program(source.read_text(encoding="utf-8"), "c++", options).compile("cubin").get_kernel(source.stem)


def captured(work: Callable[[], None], reset: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Give a graph of work that was done once before: its kernels are compiled."""
    reset()
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


class Timer:
    """Median microseconds of captured work; before each replay what it changes is reset and the L2 is flushed."""

    def __init__(self) -> None:
        self._flush = torch.ones(_L2_BYTES, dtype=torch.uint8, device="cuda")

    def __call__(
        self, work: Callable[[], None], parts: int, reset: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        """Time `work`, which does `parts` equal things one after another; the result is of one."""
        graph = captured(work, reset)
        event: Any = torch.cuda.Event  # untyped in torch, as are the two below
        start, end = (event(enable_timing=True) for _ in range(2))
        sleep: Any = torch.cuda._sleep
        found = []
        for _ in range(_REPLAYS + 1):
            reset()
            self._flush.sum()
            torch.cuda.synchronize()
            sleep(_SPIN_CYCLES)  # hides the launch
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            found.append(start.elapsed_time(end) * 1e3 / parts)
        found = sorted(found[1:])
        return {"us": round(statistics.median(found), 2), "spread_us": round(found[-1] - found[0], 2)}


def number_rows(rows: torch.Tensor, first: int = 0) -> None:
    """Write its number, from `first` on, to the first and to the last eight bytes of every row, the last dimension."""
    words, each = rows.view(torch.int64), rows[0, ..., 0].numel()
    step = -(-len(words) // _THREADS)

    def number(start: int) -> None:
        part = words[start : start + step]
        numbers = torch.arange(first + start * each, first + (start + len(part)) * each).view(part.shape[:-1])
        part[..., 0] = part[..., -1] = numbers

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(number, range(0, len(words), step)))


class HostRegion:
    """Host memory: mapped, huge pages advised, touched by many threads, registered with CUDA chunk by chunk."""

    def __init__(self, size_bytes: int, *, private: bool = False) -> None:
        # Shared memory is what a service hands out; the kernel may refuse it huge pages that private memory gets.
        kind = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
        self._map = mmap.mmap(-1, size_bytes, flags=kind | mmap.MAP_ANONYMOUS)
        self._map.madvise(mmap.MADV_HUGEPAGE)
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        address, step = self.bytes.data_ptr(), -(-size_bytes // _THREADS)

        def touch(start: int) -> None:
            ctypes.memset(address + start, 1, min(step, size_bytes - start))

        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(touch, range(0, size_bytes, step)))
        for start in range(0, size_bytes, _CHUNK_BYTES):
            size = min(_CHUNK_BYTES, size_bytes - start)
            runtime: Any = torch.cuda.cudart
            status = int(runtime().cudaHostRegister(address + start, size, 0))
            if status != 0:
                raise RuntimeError(f"cudaHostRegister of {size} bytes at {start}: error {status}")

    def number_rows(self, row_bytes: int) -> None:
        """Write its number to the first and to the last eight bytes of every row."""
        rows = len(self.bytes) // row_bytes
        number_rows(self.bytes[: rows * row_bytes].view(rows, row_bytes))

    @staticmethod
    def huge_bytes() -> int:
        """Memory in huge pages on this machine, private and shared."""
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return sum(
            int(line.split()[1]) << 10 for line in lines if line.startswith(("AnonHugePages:", "ShmemHugePages:"))
        )
