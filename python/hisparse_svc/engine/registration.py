"""Page-locking a pool for CUDA, so that its kernels read and write it in place: every segment, or none.

::

    segments (≤ 64 GiB each, whole layers)   ✓ ✓ ✗ ── the first two are undone, the third is reported
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, ClassVar, Protocol

from hisparse_svc.errors import HiSparseError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Cuda", "NotRegistered", "Registrar", "Registration"]

DEADLINE_S = 60.0
"""How long undoing it may take: a driver that hangs must not hang the engine's end."""


class NotRegistered(HiSparseError):
    """CUDA does not take the pool's memory, or does not let it go; the text says why."""

    exit_code: ClassVar[int] = 4


class Registrar(Protocol):
    """Who page-locks memory."""

    def register(self, address: int, size: int) -> None:
        """Make these bytes reachable for the device, or raise `NotRegistered`."""

    def unregister(self, address: int) -> None:
        """Undo it, or raise `NotRegistered`."""


class Cuda:
    """The driver. It reports by its answer alone, so a refusal leaves no error behind for a later call to find.

    Args:
        device: Number of the GPU.
    """

    def __init__(self, device: int = 0) -> None:
        try:
            import torch  # noqa: PLC0415 - only where an engine has it
            from cuda.bindings import driver  # noqa: PLC0415 - as above
        except ImportError as failure:
            raise NotRegistered(f"{failure}: install hisparse-svc[engine]") from None
        if not torch.cuda.is_available():
            raise NotRegistered("torch finds no CUDA device: run the engine where there is one")
        torch.zeros(1, device=f"cuda:{device}")  # makes torch's own context current here
        self._driver = driver
        _, self._context = driver.cuCtxGetCurrent()

    def register(self, address: int, size: int) -> None:
        """Page-lock these bytes for every context."""
        flags = self._driver.CU_MEMHOSTREGISTER_PORTABLE | self._driver.CU_MEMHOSTREGISTER_DEVICEMAP
        self._check(self._driver.cuMemHostRegister(address, size, flags), f"cannot page-lock {size:,} bytes")

    def unregister(self, address: int) -> None:
        """Undo it, on whatever thread."""
        self._check(self._driver.cuCtxSetCurrent(self._context), "cannot reach the GPU")
        self._check(self._driver.cuMemHostUnregister(address), "cannot let the memory go")

    def _check(self, answer: tuple[object, ...], what: str) -> None:
        code = answer[0]
        if code != self._driver.CUresult.CUDA_SUCCESS:
            raise NotRegistered(f"{what}: the driver says {code}; `hisparse-svc doctor` shows what limits there are")


class Registration:
    """Segments that a device can reach, until `close`."""

    def __init__(self, segments: Sequence[tuple[int, int]], registrar: Registrar) -> None:
        self._registrar = registrar
        self._addresses: list[int] = []
        for address, size in segments:
            try:
                registrar.register(address, size)
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
