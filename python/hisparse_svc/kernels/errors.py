"""What stands between a caller and a kernel, said before anything is launched.

::

    HiSparseError
    ├── InvalidInput         wrong dtype, shape, stride, device, alignment, id: every problem together
    ├── DeviceUnavailable    no CUDA, no cuda-core, a GPU too old or too small for this shape
    └── CompileFailed        NVRTC refused a kernel; its log is in the text
"""

from __future__ import annotations

from hisparse_svc.errors import HiSparseError

__all__ = ["CompileFailed", "DeviceUnavailable"]


class DeviceUnavailable(HiSparseError):
    """This machine cannot run the kernel; the text says what is missing and what to do."""


class CompileFailed(HiSparseError):
    """A kernel did not compile.

    Attributes:
        log: What the compiler said.
    """

    def __init__(self, kernel: str, arch: str, log: str) -> None:
        self.log = log
        super().__init__(
            f"kernel {kernel} does not compile for {arch}; please report this with the log:\n{log.strip()}"
        )
