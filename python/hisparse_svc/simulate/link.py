"""What missing rows cost on the way from host memory.

::

    µs of one layer = 6  +  rows × row bytes / 54.7 GB/s  +  stretches touched × 16 ns
                      │     └ the link                       └ address translation
                      └ resolve, launch, counts

The figures are those of docs/swap-in.md, measured on one H200 with PCIe 5 x16, each request in one extent. A stretch is
256 KiB of host memory; of `s` of them `rows` rows that lie anywhere touch `s × (1 − e^(−rows / s))`. Rows of 1,152 B
hide most of the translation behind the link: 4 ns. It is within 30 % of every measured swap-in of 1,000 rows and more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Link"]

FIXED_US = 6.0
LINK_BYTES_PER_US = 54_700.0
STRETCH_BYTES = 256 << 10
STRETCH_US = 0.016
WIDE_STRETCH_US = 0.004
WIDE_ROW_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Link:
    """Rows of one size, of requests of one length.

    Attributes:
        row_bytes: Bytes of a row.
        requests: Requests of a step.
        context_tokens: Tokens of each in host memory.
    """

    row_bytes: int
    requests: int
    context_tokens: int

    def swap_in_us(self, rows: float) -> float:
        """Give the time of one layer's swap-in of `rows` missing rows, over all requests."""
        stretches = max(1.0, self.requests * self.context_tokens * self.row_bytes / STRETCH_BYTES)
        touched = stretches * -math.expm1(-rows / stretches)
        stretch_us = STRETCH_US if self.row_bytes < WIDE_ROW_BYTES else WIDE_STRETCH_US
        return FIXED_US + rows * self.row_bytes / LINK_BYTES_PER_US + touched * stretch_us
