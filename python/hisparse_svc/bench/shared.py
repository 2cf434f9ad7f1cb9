"""What a host pool takes of a machine's memory, however many processes map it."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["machine_shared_bytes", "pool_bytes"]

_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ ")


def pool_bytes(process: int) -> tuple[int, int]:
    """Give a process's pages of host pools, and its share of them where others map them too, both in bytes.

    Shares of all processes add up to what the pool takes. CUDA shares memory of its own, which is not counted.
    """
    found = {"Rss": 0, "Pss": 0}
    of_pool = False
    for line in Path(f"/proc/{process}/smaps").read_text(encoding="utf-8").splitlines():
        if _MAPPING.match(line):
            of_pool = "hisparse-segment" in line
        elif of_pool and (field := line.split(":")[0]) in found:
            found[field] += int(line.split()[1]) << 10
    return found["Rss"], found["Pss"]


def machine_shared_bytes() -> int:
    """Give the shared memory of all processes of this machine together, each page once."""
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Shmem:"))
