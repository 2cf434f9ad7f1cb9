"""The client's own count of what a server hands out, kept apart from the ledger that it judges.

::

    grant ─► a page that is new to its lease must be nobody's; every pool's parts must add up to its total
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hisparse_svc.rpc.values import Capacity, Extent, Lease

ONE_MORE = bytes(min(count + 1, 255) for count in range(256))
ONE_LESS = bytes(max(count - 1, 0) for count in range(256))


class Audit:
    """Counts holders of every page. `overcommit` and `unbalanced` must stay 0."""

    def __init__(self, total_pages: int) -> None:
        self._holders = bytearray(total_pages)
        self.overcommit = 0
        """Pages handed out twice, or beyond the pool."""
        self.unbalanced = 0
        """Pools seen whose parts did not add up to their total."""
        self.used = 0
        """Pages in leases' hands now."""
        self.peak = 0

    def granted(self, lease: Lease) -> None:
        """Count a lease in."""
        shared = lease.shared_pages
        for first, count in _runs(lease.extents):
            end = first + count
            self.overcommit += max(end - len(self._holders), 0)
            held = self._holders[first:end]
            known = min(shared, count)
            shared -= known
            self.overcommit += len(held[known:]) - held[known:].count(0)
            self.used += held.count(0)
            self._holders[first:end] = held.translate(ONE_MORE)
        self.peak = max(self.peak, self.used)

    def released(self, lease: Lease) -> None:
        """Count a lease out."""
        for first, count in _runs(lease.extents):
            left = self._holders[first : first + count].translate(ONE_LESS)
            self.used -= left.count(0)
            self._holders[first : first + count] = left

    def seen(self, capacity: Capacity) -> None:
        """Check one answer about the node."""
        for pool in capacity.pools:
            parts = pool.free + pool.reserved + pool.committed + pool.evictable + pool.scrubbing + pool.quarantined
            self.unbalanced += parts != pool.total


def _runs(extents: Iterable[Extent]) -> Iterator[tuple[int, int]]:
    return ((extent.first_page, extent.page_count) for extent in extents)


def count_extents(lease: Lease) -> tuple[int, int]:
    """Give a lease's runs of shared pages, and those of new ones.

    Where the first new page goes on from the last shared one the two are one run, which counts as shared.
    """
    shared_runs, all_runs, end, left = 0, 0, None, lease.shared_pages
    for first, count in _runs(lease.extents):
        begins = first != end
        all_runs += begins
        shared_runs += begins and left > 0
        left -= min(left, count)
        end = first + count
    return shared_runs, all_runs - shared_runs
