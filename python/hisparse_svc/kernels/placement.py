"""How many SMs a gather takes: few, or address translation thrashes and attention has nowhere to run.

::

    rows expected in one gather      2,048 ────────────────────►
    blocks of 512 threads         16        8                       a block holds one SM; a warp has one row in flight

Translation is what limits random rows of a large pool, and 128 rows in flight keep it busy: more blocks, threads or
rows per warp were 1 to 25 % slower at 13,000 rows and more (H200, 44 GB of host memory). With few rows, latency counts.
"""

from __future__ import annotations

__all__ = ["GATHER_THREADS", "gather_blocks"]

GATHER_THREADS = 512
"""Threads of a gather's block."""

_FEW_ROWS = 2048
_BLOCKS_FOR_FEW = 16
_BLOCKS = 8


def gather_blocks(expected_rows: int) -> int:
    """Give the thread blocks for a gather that is expected to copy this many rows.

    The true count is known on the device alone. An estimate, such as the last step's count, is enough: a poor choice
    costs some time, and any number of blocks copies every row.
    """
    return _BLOCKS_FOR_FEW if expected_rows <= _FEW_ROWS else _BLOCKS
