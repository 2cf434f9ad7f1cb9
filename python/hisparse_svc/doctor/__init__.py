"""What this machine can do. Nothing here fails: what cannot be found out is said to be unknown, and why.

::

    _core.machine()  ──► memory   memory, cgroup, NUMA, huge pages, THP, /dev/shm, memlock
    nvidia-smi, /dev ──► compute  GPU, torch, kernels
                            └──► [Check(name, state, found, meaning, remedy), …]
"""

from __future__ import annotations

from hisparse_svc.doctor.check import Check
from hisparse_svc.doctor.compute import compute_checks
from hisparse_svc.doctor.memory import memory_checks

__all__ = ["Check", "examine"]


def examine(assume_memory: int | None = None) -> list[Check]:
    """Look at the machine.

    Args:
        assume_memory: Bytes to go by instead of what the machine says about its memory.

    Returns:
        One check per subject, in the order people read them.
    """
    return [*memory_checks(assume_memory), *compute_checks()]
