"""Ray Serve over many nodes: requests go to the replica whose node has room, and hold a lease while they stream.

::

    handle ─► CapacityRouter ── ranks by the views of the fleet ─► replica: NodeReplica ─ Admit, Commit ─► its node
                   ▲                                                             └ Release at the stream's end
                   └──────────── WatchCapacity, one per replica ──────────────────────────────────────────────┘

    router      CapacityRouter: which replica        replicas    the fleet's directory of them
    replica     NodeReplica: the node and leases     sizes       what a request asks for

Needs `pip install 'hisparse-svc[ray]'`. Ray's request-router interface is alpha: this is written for Ray 2.60.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hisparse_svc import extras
from hisparse_svc.integrations.ray.replica import NodeReplica, StreamLease

if TYPE_CHECKING:
    from hisparse_svc.integrations.ray.router import CapacityRouter

__all__ = ["CapacityRouter", "NodeReplica", "StreamLease"]


def __getattr__(name: str) -> Any:
    """Import the router, and Ray with it, at its first use."""
    if name != "CapacityRouter":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with extras.needed(name, "ray"):
        from hisparse_svc.integrations.ray.router import CapacityRouter  # noqa: PLC0415 - a replica needs no Ray

    return CapacityRouter
