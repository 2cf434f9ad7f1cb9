"""From messages to values. No rule lives here."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hisparse_svc._proto import types_pb2
from hisparse_svc.rpc import values

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.timestamp_pb2 import Timestamp

    from hisparse_svc._proto import admin_pb2, admission_pb2, capacity_pb2, engine_pb2

STATES = {
    types_pb2.LEASE_STATE_RESERVED: values.LeaseState.RESERVED,
    types_pb2.LEASE_STATE_COMMITTED: values.LeaseState.COMMITTED,
    types_pb2.LEASE_STATE_QUARANTINED: values.LeaseState.QUARANTINED,
    types_pb2.LEASE_STATE_RELEASED: values.LeaseState.RELEASED,
}


def instant(stamp: Timestamp) -> datetime:
    """Give a point in time, to the microsecond."""
    return stamp.ToDatetime(tzinfo=UTC)


def lease(message: types_pb2.Lease) -> values.Lease:
    """Read a lease."""
    return values.Lease(
        id=message.id,
        request_id=message.request_id,
        state=STATES.get(message.state, values.LeaseState.UNKNOWN),
        epoch=message.epoch,
        pages=message.pages,
        shared_pages=message.shared_pages,
        tokens=message.tokens,
        tenant=message.tenant,
        expires_at=instant(message.expire_time) if message.HasField("expire_time") else None,
        extents=tuple(values.Extent(extent.first_page, extent.page_count) for extent in message.extents),
    )


def pool(message: types_pb2.Pool) -> values.Pool:
    """Read a pool."""
    return values.Pool(
        name=message.name,
        total=message.total,
        free=message.free,
        reserved=message.reserved,
        committed=message.committed,
        evictable=message.evictable,
        scrubbing=message.scrubbing,
        quarantined=message.quarantined,
        numa_node=message.numa_node if message.HasField("numa_node") else None,
    )


def fits(messages: Iterable[types_pb2.Fit]) -> tuple[values.Fit, ...]:
    """Read the answers about lengths."""
    return tuple(values.Fit(fit.tokens, fit.count, fit.binding, fit.reason) for fit in messages)


def capacity(
    message: types_pb2.Capacity | capacity_pb2.GetCapacityResponse, asked: Iterable[types_pb2.Fit] = ()
) -> values.Capacity:
    """Read a node's capacity."""
    return values.Capacity(
        epoch=message.epoch,
        sequence=message.sequence,
        observed_at=instant(message.observed_at),
        pools=tuple(map(pool, message.pools)),
        largest_grant_tokens=message.largest_grant_tokens,
        max_request_tokens=message.max_request_tokens,
        draining=message.draining,
        largest_extent_pages=message.largest_extent_pages,
        fits=fits(asked),
    )


def snapshot(message: capacity_pb2.GetCapacityResponse) -> values.Capacity:
    """Read the answer of GetCapacity."""
    parts = message.quotas
    quotas = tuple(
        values.Quota(part.pool, part.floor, part.ceiling if part.HasField("ceiling") else None, part.used)
        for part in parts
    )
    return replace(capacity(message, message.fits), quotas=quotas)


def admission(message: admission_pb2.AdmitResponse) -> values.Admission:
    """Read a grant."""
    return values.Admission(lease(message.lease), capacity(message.capacity), message.repeated_request)


def lease_of(message: Any) -> values.Lease:
    """Read an answer that holds one lease."""
    return lease(message.lease)


def reclaimed(message: engine_pb2.ReclaimResponse) -> tuple[values.Reclaimed, ...]:
    """Read what a successor gets back."""
    return tuple(values.Reclaimed(lease(back.lease), back.durable_tokens) for back in message.leases)


def released(message: admission_pb2.ReleaseResponse) -> values.Released:
    """Read the outcome of a release."""
    return values.Released(message.already_released, message.quarantined)


def lease_page(message: admission_pb2.ListLeasesResponse) -> values.LeasePage:
    """Read one page of leases."""
    return values.LeasePage(tuple(map(lease, message.leases)), message.next_page_token)


def drain_state(message: admin_pb2.DrainResponse) -> values.DrainState:
    """Read how far a drain is."""
    return values.DrainState(message.leases, capacity(message.capacity), message.empty)


def segment(message: admin_pb2.Segment) -> values.Segment:
    """Read one memory file of the pool."""
    return values.Segment(
        bytes=message.bytes,
        backing=message.backing,
        page_bytes=message.page_bytes,
        placement=message.placement,
        placed_by=message.placed_by,
        node_percent=MappingProxyType(dict(message.node_percent)),
    )


def server_info(message: admin_pb2.GetServerInfoResponse) -> values.ServerInfo:
    """Read who answers."""
    return values.ServerInfo(
        version=message.version,
        epoch=message.epoch,
        model=message.model,
        backing=message.backing,
        page_tokens=message.page_tokens,
        host_bytes=message.host_bytes,
        addresses=tuple(message.addresses),
        started_at=instant(message.start_time),
        uptime_s=message.uptime.seconds + message.uptime.nanos / 1e9,
        draining=message.draining,
        waiters=message.waiters,
        limits=MappingProxyType(dict(message.limits)),
        segments=tuple(segment(found) for found in message.segments),
        notes=tuple(message.notes),
    )


class Watched:
    """Puts a watch's messages together: feed it each one, and it gives the node as it is after it.

    ::

        snapshot ─► whole    delta ─► replace the pools it names    sync, or what is known ─► nothing new
        resync ─► the next snapshot says why it does not go on from what was seen
    """

    def __init__(self) -> None:
        self._seen: types_pb2.Capacity | None = None
        self._resync = ""

    def feed(self, message: capacity_pb2.WatchCapacityResponse) -> values.Capacity | None:
        """Take one message in; `None` where it changes nothing."""
        event = message.WhichOneof("event")
        if event == "snapshot":
            self._seen = types_pb2.Capacity()
            self._seen.CopyFrom(message.snapshot)
        elif event == "delta" and self._seen is not None:
            if (self._seen.epoch, self._seen.sequence) == (message.epoch, message.sequence):
                return None  # a watch that was resumed is told once more what it knows
            self._apply(message.delta)
        elif event == "resync":
            self._resync = message.resync.reason
            return None
        else:
            return None
        self._seen.epoch, self._seen.sequence = message.epoch, message.sequence
        resync, self._resync = self._resync, ""
        return replace(capacity(self._seen, message.fits), resync=resync)

    @property
    def holds(self) -> bool:
        """Whether what was seen is still so; not after a resync, until its snapshot is here."""
        return self._seen is not None and not self._resync

    def _apply(self, delta: capacity_pb2.CapacityDelta) -> None:
        assert self._seen is not None  # noqa: S101 - the caller has looked
        places = {(pool.name, pool.numa_node): pool for pool in self._seen.pools}
        unplaced = {pool.name: pool for pool in self._seen.pools if not pool.HasField("numa_node")}
        for changed in delta.pools:
            # One that had no node yet was still being made.
            known = places.get((changed.name, changed.numa_node), unplaced.get(changed.name))
            (known if known is not None else self._seen.pools.add()).CopyFrom(changed)
        self._seen.observed_at.CopyFrom(delta.observed_at)
        self._seen.largest_grant_tokens = delta.largest_grant_tokens
        self._seen.max_request_tokens = delta.max_request_tokens
        self._seen.draining = delta.draining
        self._seen.largest_extent_pages = delta.largest_extent_pages
