"""Page-locking a pool for CUDA, so that its kernels read and write it in place: every chunk of it, or none.

::

    chunks (≤ 64 GiB, ending where layers do)   ✓ ✓ ✗ ── the first two are undone ─┬─ again in halves, down to 1 GiB
                                                                                    └─ then the refusal is reported

One call for all of a large pool fails, and a long one holds the driver's lock against every other process. Some kernels
pin at most 2 GiB at a time: hence the halves. The driver is called with the GIL released.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, ClassVar, Protocol

from hisparse_svc import _core
from hisparse_svc.errors import HiSparseError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Cuda", "NotRegistered", "Registrar", "Registration"]

DEADLINE_S = 60.0
"""How long undoing it may take: a driver that hangs must not hang the engine's end."""

MOST_BYTES = _core.MAX_SEGMENT_BYTES
"""Longest chunk that is tried."""

LEAST_BYTES = 1 << 30
"""Shortest one: what even kernels that pin little at a time take."""


class NotRegistered(HiSparseError):
    """CUDA does not take the pool's memory, or does not let it go; the text says why."""

    exit_code: ClassVar[int] = 4


class Registrar(Protocol):
    """Who page-locks memory."""

    def register(self, address: int, size: int, *, read_only: bool) -> None:
        """Make these bytes reachable for the device, for reading alone where they are mapped so.

        Raises:
            NotRegistered: It refuses.
        """

    def unregister(self, address: int) -> None:
        """Undo it.

        Raises:
            NotRegistered: It refuses.
        """


class Cuda:
    """The driver. It reports by its answer alone, so a refusal leaves no error behind for a later call to find.

    Args:
        device: Number of the GPU.

    Raises:
        NotRegistered: torch or cuda-core is not installed.
        DeviceUnavailable: torch finds no CUDA device.
    """

    def __init__(self, device: int = 0) -> None:
        try:
            import torch  # noqa: PLC0415 - only where an engine has it
            from cuda.bindings import driver  # noqa: PLC0415 - as above
        except ImportError as failure:
            raise NotRegistered(f"{failure}: install hisparse-svc[engine]") from None
        from hisparse_svc.kernels import demand_cuda  # noqa: PLC0415 - needs torch

        demand_cuda('nothing is to be registered: decode on "cpu" without it, or run where there is a GPU')
        with torch.cuda.device(device):
            torch.zeros(1, device="cuda")  # makes torch's own context current here
            _, self._context = driver.cuCtxGetCurrent()
        self._driver = driver
        attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED
        code, supported = driver.cuDeviceGetAttribute(attribute, device)
        self.takes_read_only = code == driver.CUresult.CUDA_SUCCESS and bool(supported)
        """Whether this GPU can register memory that is mapped read-only."""

    def register(self, address: int, size: int, *, read_only: bool) -> None:
        """Page-lock these bytes for every context."""
        if read_only and not self.takes_read_only:
            raise NotRegistered(
                "this GPU cannot register memory that is mapped read-only: attach this rank as writable_reader"
            )
        flags = self._driver.CU_MEMHOSTREGISTER_PORTABLE | self._driver.CU_MEMHOSTREGISTER_DEVICEMAP
        if read_only:
            flags |= self._driver.CU_MEMHOSTREGISTER_READ_ONLY
        # Pushed, not set: whichever device is current in the caller's thread stays so.
        self._check(self._driver.cuCtxPushCurrent(self._context), "cannot reach the GPU")
        try:
            self._check(self._driver.cuMemHostRegister(address, size, flags), f"cannot page-lock {size:,} bytes")
        finally:
            self._driver.cuCtxPopCurrent()

    def unregister(self, address: int) -> None:
        """Undo it, on whatever thread."""
        self._check(self._driver.cuCtxSetCurrent(self._context), "cannot reach the GPU")
        self._check(self._driver.cuMemHostUnregister(address), "cannot let the memory go")

    def _check(self, answer: tuple[object, ...], what: str) -> None:
        code = answer[0]
        if code != self._driver.CUresult.CUDA_SUCCESS:
            raise NotRegistered(f"{what}: the driver says {code}; `hisparse-svc doctor` shows what limits there are")


class Registration:
    """A pool that a device can reach, until `close`.

    Args:
        cut: Gives all of the pool as (address, bytes), in chunks of at most so many bytes.
        registrar: Who does it.
        read_only: Whether the memory is mapped read-only here.
    """

    def __init__(
        self, cut: Callable[[int], Sequence[tuple[int, int]]], registrar: Registrar, *, read_only: bool = False
    ) -> None:
        self._registrar = registrar
        self._addresses: list[int] = []
        most = MOST_BYTES
        while True:
            chunks = cut(most)
            try:
                self._register(chunks, read_only=read_only)
            except NotRegistered:
                longest = max(size for _, size in chunks)
                if longest <= LEAST_BYTES:
                    raise
                most = max(LEAST_BYTES, min(most, longest) // 2)
            else:
                return

    def _register(self, chunks: Sequence[tuple[int, int]], *, read_only: bool) -> None:
        for address, size in chunks:
            try:
                self._registrar.register(address, size, read_only=read_only)
            except BaseException:
                self.close()
                raise
            self._addresses.append(address)

    def close(self) -> None:
        """Undo all of it, the last one first.

        Raises:
            NotRegistered: One could not be undone, or the driver does not answer in time.
        """
        failures: list[Exception] = []

        def undo() -> None:
            while self._addresses:
                try:
                    self._registrar.unregister(self._addresses.pop())
                except Exception as failure:  # the others are still to be undone
                    failures.append(failure)

        worker = threading.Thread(target=undo, name="hisparse-unregister", daemon=True)
        worker.start()
        worker.join(DEADLINE_S)
        if worker.is_alive():
            raise NotRegistered(f"the driver has not let the memory go within {DEADLINE_S:.0f} s: end the process")
        if failures:
            raise failures[0]
