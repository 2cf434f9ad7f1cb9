"""What a service answers, as plain frozen values. Units are in names or in the line beside them.

A page is 64 tokens (`ServerInfo.page_tokens`); times are aware datetimes in UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from hisparse_svc.errors import HiSparseError


class LeaseState(StrEnum):
    """Where a lease stands."""

    RESERVED = "reserved"
    COMMITTED = "committed"
    QUARANTINED = "quarantined"
    RELEASED = "released"
    UNKNOWN = "unknown"
    """A state that this version of the client does not know."""


@dataclass(frozen=True, slots=True)
class Extent:
    """A run of pages with consecutive numbers, the same in every layer."""

    first_page: int
    page_count: int


@dataclass(frozen=True, slots=True)
class Lease:
    """One granted reservation over all pools."""

    id: str
    """Unique across restarts; empty where nothing was reserved (`validate_only`)."""
    request_id: str
    state: LeaseState
    epoch: int
    pages: int
    """Host pages held, shared ones included."""
    shared_pages: int
    """Those of them that were already in host memory for another lease."""
    tokens: int
    """Length reserved: prompt, generated and new tokens together."""
    tenant: str
    expires_at: datetime | None
    """When it ends without commit or renew; `None` while its engine's session keeps it."""
    extents: tuple[Extent, ...] = ()
    """Which pages, in token order; empty in lists."""

    @property
    def page_numbers(self) -> tuple[int, ...]:
        """Every page of the extents, in token order."""
        return tuple(page for run in self.extents for page in range(run.first_page, run.first_page + run.page_count))


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """A lease that a dead engine's successor gets back."""

    lease: Lease
    durable_tokens: int
    """Tokens whose KV is durable in host memory: decoding resumes there."""


@dataclass(frozen=True, slots=True)
class Usage:
    """How far one running request has come."""

    lease_id: str
    tokens: int
    """Tokens it holds now."""
    hit_rows: int = 0
    """Rows found in the hot buffer since the report before."""
    miss_rows: int = 0
    """Rows copied from host memory since the report before."""


@dataclass(frozen=True, slots=True)
class SwapInUsage:
    """What one layer group swapped in since the report before; a row is one token in one layer."""

    layer_group: int
    """Number of the group, as in `HostPool.groups`."""
    hit_rows: int = 0
    """Rows that attention read from the hot buffer without a copy."""
    miss_rows: int = 0
    """Rows copied from host memory."""
    copied_bytes: int = 0
    """Bytes of these copies."""


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool at one moment; `total` is always the sum of the six parts below it."""

    name: str
    """`host_pages` (pages), `seats` (hot buffers), `indexer_tokens` (tokens), `request_slots` (requests) or
    `window_tokens` (tokens)."""
    total: int
    free: int
    reserved: int
    committed: int
    evictable: int
    """Cached prefixes that no lease holds; they can be granted."""
    scrubbing: int
    quarantined: int
    numa_node: int | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """How many more requests of one length would be granted now."""

    tokens: int
    count: int
    binding: str
    """The pool that stops the next one; `max_request_tokens` where the length can never fit."""
    reason: str = ""
    """Why the next one would be refused, as `POOL_BUSY`; empty from a service that does not say."""


@dataclass(frozen=True, slots=True)
class Quota:
    """What one tenant may hold of a pool, and what it holds."""

    pool: str
    floor: int
    """Kept for it at all times."""
    ceiling: int | None
    """Most it may hold; `None` where nothing but the pool bounds it."""
    used: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a node has at one point of its order of decisions."""

    epoch: int
    """Generation of the pool; a new one voids older leases and sequences."""
    sequence: int
    """Grows with every change within an epoch."""
    observed_at: datetime
    pools: tuple[Pool, ...]
    largest_grant_tokens: int
    """Longest single request that would be granted now."""
    max_request_tokens: int
    """Longest request that could ever be granted."""
    draining: bool
    largest_extent_pages: int = 0
    """Longest run of free host pages with consecutive numbers; a short one slows swap-in, not admission."""
    fits: tuple[Fit, ...] = ()
    """One entry per length asked for."""
    quotas: tuple[Quota, ...] = ()
    """The tenant's part of each pool, where one was named and the node knows it."""
    resync: str = ""
    """In a watch: why this does not go on from the one before (another epoch, another node); empty where it does."""

    def pool(self, name: str) -> Pool:
        """Give one pool, its parts on all NUMA nodes added up.

        Raises:
            KeyError: The node has no such pool.
        """
        parts = [pool for pool in self.pools if pool.name == name]
        if not parts:
            raise KeyError(name)
        if len(parts) == 1:
            return parts[0]
        return Pool(
            name,
            total=sum(part.total for part in parts),
            free=sum(part.free for part in parts),
            reserved=sum(part.reserved for part in parts),
            committed=sum(part.committed for part in parts),
            evictable=sum(part.evictable for part in parts),
            scrubbing=sum(part.scrubbing for part in parts),
            quarantined=sum(part.quarantined for part in parts),
        )


@dataclass(frozen=True, slots=True)
class Admission:
    """A grant: the lease, and the node right after it."""

    lease: Lease
    capacity: Capacity
    repeated_request: bool
    """This request id had been granted before, and `lease` is that lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What one request needs: its token counts, or `pages`."""

    prompt_tokens: int = 0
    max_new_tokens: int = 0
    """Most tokens it may still produce; the whole length is reserved."""
    generated_tokens: int = 0
    """Tokens already produced, where it starts again after it ran elsewhere."""
    pages: int = 0
    prefix_hashes: Sequence[bytes] = ()
    """Content hashes of the prompt's full pages, 32 bytes each, from the first page on."""
    request_id: str = ""
    """The caller's name for it; empty lets the client make one. The same name gives the same lease."""
    tenant: str = ""
    priority: int = 0
    """From -100 to 100; larger goes first among those that wait."""
    ttl_s: float | None = None
    """Life without commit; `None` means the server's 30 s."""


class RequestFields(TypedDict, total=False):
    """The fields of `Request` that `admit` takes by name, beside the two lengths."""

    generated_tokens: int
    pages: int
    prefix_hashes: Sequence[bytes]
    request_id: str
    tenant: str
    priority: int
    ttl_s: float | None


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of one request of a batch: a lease, or the refusal that it alone would have raised."""

    lease: Lease | None
    refusal: HiSparseError | None
    repeated_request: bool


@dataclass(frozen=True, slots=True)
class Released:
    """The outcome of a release."""

    already_released: bool
    """There was nothing to give back."""
    quarantined: bool
    """An attached engine may still write to its pages; they are free when it says so, or after a bound."""


@dataclass(frozen=True, slots=True)
class LeasePage:
    """One page of a list of leases."""

    leases: tuple[Lease, ...]
    next_page_token: str


@dataclass(frozen=True, slots=True)
class DrainState:
    """How far a drain is."""

    leases: int
    """Leases still held."""
    capacity: Capacity
    empty: bool = False
    """Nothing is held any more: the process may be stopped."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One memory file of the host pool."""

    bytes: int
    backing: str
    """`hugetlb`, `memfd_thp`, `memfd` or `file`."""
    page_bytes: int
    placement: str
    """Where its pages were to come from, in words."""
    placed_by: str
    """`anywhere`, `by_policy`, or `by_first_touch` where the kernel refuses policies."""
    node_percent: Mapping[int, int]
    """Where its pages lie: NUMA node to percent of a sample; empty where the kernel does not tell."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Who answers."""

    version: str
    epoch: int
    model: str
    backing: str
    """`memory` where the node owns the pages, `none` where it only counts them."""
    page_tokens: int
    host_bytes: int
    """Bytes of the host pool as planned; 0 where the node has no plan."""
    addresses: tuple[str, ...]
    started_at: datetime
    uptime_s: float
    draining: bool
    waiters: int
    limits: Mapping[str, int]
    """Every bound of the interface by its name, in the unit its name ends with."""
    segments: tuple[Segment, ...] = ()
    """The host pool's memory, where the node owns it."""
    notes: tuple[str, ...] = ()
    """What is not as it was asked for, each a sentence with what to do."""
