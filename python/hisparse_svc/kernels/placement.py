"""How many SMs a gather takes, and when it puts rows in order.

::

    rows of one gather      2,048      20,000 ────────────────►
    order                as listed │ by host address
    blocks                     8, one cluster  │  16, two         a block holds one SM; 4 if attention needs more
    rows in flight                   128                          one per warp

Translation is what limits random rows of a large pool. On an H200 a row of 656 bytes costs 12 ns of the link, and each
stretch of about 200 KiB of host memory another 16, whenever a row comes from it after many others have come in between:
in address order once, else once per request or row. Rows in flight do not hide it: more are slower, on few SMs most.
"""

from __future__ import annotations

__all__ = [
    "GATHER_BINS",
    "GATHER_BLOCKS",
    "GATHER_CLUSTER",
    "ORDER_FROM_ROWS",
    "gather_blocks",
    "gather_threads",
]

GATHER_CLUSTER = 8
"""Most blocks that put rows in order together: larger clusters are not portable."""

GATHER_BLOCKS = (1, 2, 4, 8, 16, 32)
"""Numbers of blocks that a gather may take: one cluster, or whole ones of eight."""

GATHER_BINS = 2048
"""Even parts of the host pool that a gather tells apart when it puts rows in order."""

ORDER_FROM_ROWS = 2048
"""Fewer rows are copied as listed: ordering them takes longer than it saves."""

_MANY_ROWS = 20_000
_BLOCKS_FOR_MANY = 16
_BLOCKS = 8
_FEWEST_BLOCKS = 4
_THREADS_IN_ALL = 4096
_MOST_THREADS = 512
_FEWEST_THREADS = 128


def gather_blocks(expected_rows: int, *, spare_sms: int = 0) -> int:
    """Give the thread blocks for a gather that is expected to copy this many rows.

    The true count is known on the device alone. An estimate, such as the last step's count, is enough: a poor choice
    costs some time, and any number of blocks copies every row.

    Args:
        expected_rows: Rows to expect.
        spare_sms: SMs that the kernel beside it leaves if it is to run at once; 0: there is none, or it cannot anyway.
    """
    wanted = _BLOCKS if expected_rows < _MANY_ROWS else _BLOCKS_FOR_MANY
    fitting = [blocks for blocks in GATHER_BLOCKS if _FEWEST_BLOCKS <= blocks <= spare_sms]
    return min(wanted, max(fitting, default=wanted))


def gather_threads(blocks: int) -> int:
    """Give the threads of a block; each warp has one row in flight."""
    return max(_FEWEST_THREADS, min(_MOST_THREADS, _THREADS_IN_ALL // blocks))
