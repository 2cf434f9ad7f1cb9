"""The two objects of a node as they are written and read; the schema is deploy/kubernetes/cluster/hisparsenode.yaml.

::

    Capacity, state ─► node_body, status_body ─► HisparseNode ─► read_capacity ─► Capacity
    Identity ───────► lease_body ─────────────► Lease of coordination.k8s.io, labelled `hisparse.io/node`

Fields are GetCapacity's own; a pool's parts on several NUMA nodes are added up.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from hisparse_svc.rpc import values

if TYPE_CHECKING:
    from collections.abc import Iterable

GROUP, VERSION, KIND, PLURAL = "hisparse.io", "v1alpha1", "HisparseNode", "hisparsenodes"
LABEL = "hisparse.io/node"
"""On a node's Lease, so that routers see no others."""
MANAGER = "hisparse-publish"
"""Owner of the fields that a publisher applies."""
LOOKER = "hisparse-look"
"""As whom a publisher looks at what is there: it never owns a field."""
MOST_REASON = 1_000
"""Letters of a state's reason; the schema allows a few more."""

SERVING, DRAINING, RECOVERING, UNREACHABLE, STOPPED = "Serving", "Draining", "Recovering", "Unreachable", "Stopped"
"""The states that a node's object may have."""

POOL_PARTS = ("total", "free", "reserved", "committed", "evictable", "scrubbing", "quarantined")

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Identity:
    """Who publishes, and as what."""

    namespace: str
    name: str
    """Of both objects: the pod's."""
    address: str
    """Where routers reach the node, `HOST:PORT`."""
    pod_uid: str = ""
    """The pod that owns both objects, so that they go with it; empty outside of one, where somebody deletes them."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A node as its publisher sees it at one moment."""

    state: str
    reason: str
    capacity: values.Capacity | None
    """As of its last word; `None` before the first."""
    info: values.ServerInfo | None
    """What it is; `None` before it was heard."""


def nodes_path(namespace: str, name: str = "", subresource: str = "") -> str:
    """Give the path of a namespace's nodes, or of one."""
    return _path(f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}", name, subresource)


def leases_path(namespace: str, name: str = "") -> str:
    """Give the path of a namespace's Leases, or of one."""
    return _path(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases", name, "")


def _path(collection: str, name: str, subresource: str) -> str:
    return "/".join(part for part in (collection, name, subresource) if part)


def node_body(identity: Identity, info: values.ServerInfo) -> Document:
    """Give the object without its status: who the node is."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": _metadata(identity),
        "spec": {
            "address": identity.address,
            "model": info.model,
            "backing": info.backing,
            "pageTokens": info.page_tokens,
            "version": info.version,
        },
    }


def named_body(identity: Identity) -> Document:
    """Give the object's name alone, which changes nothing of it."""
    metadata = {"name": identity.name, "namespace": identity.namespace}
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": metadata}


def status_body(identity: Identity, seen: Condition, now: datetime) -> Document:
    """Give the object's status alone: what the node has."""
    status: Document = {"state": seen.state, "refreshedAt": stamp(now)}
    if seen.reason:
        status["reason"] = seen.reason[:MOST_REASON]
    if seen.info is not None:
        status["startedAt"] = stamp(seen.info.started_at)
    if seen.capacity is not None:
        status |= capacity_fields(seen.capacity)
    metadata = _metadata(identity)
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": metadata, "status": status}


def capacity_fields(capacity: values.Capacity) -> Document:
    """Give a capacity as the status has it."""
    pools = [capacity.pool(name) for name in dict.fromkeys(pool.name for pool in capacity.pools)]
    return {
        "observedAt": stamp(capacity.observed_at),
        "epoch": capacity.epoch,
        "sequence": capacity.sequence,
        "largestGrantTokens": capacity.largest_grant_tokens,
        "maxRequestTokens": capacity.max_request_tokens,
        "largestExtentPages": capacity.largest_extent_pages,
        "pools": [{"name": pool.name} | {part: getattr(pool, part) for part in POOL_PARTS} for pool in pools],
        "fits": [
            {"tokens": fit.tokens, "count": fit.count} | ({"binding": fit.binding} if fit.binding else {})
            for fit in capacity.fits
        ],
    }


def read_capacity(status: Document) -> values.Capacity | None:
    """Give the capacity that a status tells; `None` where it tells none that can be read."""
    try:
        return values.Capacity(
            epoch=int(status["epoch"]),
            sequence=int(status["sequence"]),
            observed_at=datetime.fromisoformat(status["observedAt"]),
            pools=tuple(
                values.Pool(pool["name"], *(int(pool[part]) for part in POOL_PARTS)) for pool in status["pools"]
            ),
            largest_grant_tokens=int(status["largestGrantTokens"]),
            max_request_tokens=int(status["maxRequestTokens"]),
            draining=status.get("state") == DRAINING,
            largest_extent_pages=int(status.get("largestExtentPages", 0)),
            fits=tuple(_fits(status.get("fits") or ())),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _fits(listed: Iterable[Document]) -> Iterable[values.Fit]:
    return (values.Fit(int(fit["tokens"]), int(fit["count"]), fit.get("binding", "")) for fit in listed)


def lease_body(identity: Identity, duration_s: int, now: datetime, *, released: bool = False) -> Document:
    """Give the Lease that vouches for the node; `released` where nobody does any more."""
    spec: Document = {"leaseDurationSeconds": 1 if released else duration_s, "renewTime": stamp(now)}
    if not released:
        spec["holderIdentity"] = identity.pod_uid or identity.name
    metadata = _metadata(identity) | {"labels": {LABEL: "true"}}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def _metadata(identity: Identity) -> Document:
    metadata: Document = {"name": identity.name, "namespace": identity.namespace}
    if identity.pod_uid:
        # Neither a controller nor a block of deletion: those need further rights.
        owner = {"apiVersion": "v1", "kind": "Pod", "name": identity.name, "uid": identity.pod_uid}
        metadata["ownerReferences"] = [owner]
    return metadata


def stamp(moment: datetime) -> str:
    """Write a time as the API has it, in microseconds."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def serving_address(document: Document) -> tuple[str, datetime | None]:
    """Give where an object says that its node is, and when its publisher last said so; empty where it has stopped."""
    status = document.get("status") or {}
    if not status or status.get("state") == STOPPED:
        return "", None
    try:
        refreshed_at = datetime.fromisoformat(status["refreshedAt"]).astimezone(UTC)
    except (KeyError, TypeError, ValueError):
        refreshed_at = None
    return str((document.get("spec") or {}).get("address", "")), refreshed_at


def written_at(document: Document, subresource: str = "") -> datetime | None:
    """Give when the publisher last changed an object, by the API server's own clock; `None` where that is not told."""
    for entry in document.get("metadata", {}).get("managedFields") or ():
        if entry.get("manager") == MANAGER and entry.get("subresource", "") == subresource:
            try:
                return datetime.fromisoformat(entry["time"])
            except (KeyError, ValueError):
                return None
    return None
