"""Replacement policies over top-k streams: what would miss, and what the misses would cost.

::

    Stream ── lanes ──► policy (rows) ──► misses of each step ──► Link ──► bytes and µs a step
                        LRU FIFO random CLOCK SLRU LRU-2 ARC S3-FIFO Belady

Needs numpy.
"""

from __future__ import annotations

from hisparse_svc.simulate.document import Wanted, simulate
from hisparse_svc.simulate.link import Link
from hisparse_svc.simulate.policies import POLICIES, Policy, make

__all__ = ["POLICIES", "Link", "Policy", "Wanted", "make", "simulate"]
