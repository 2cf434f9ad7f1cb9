"""Many nodes as one: who they are, which one to ask, and a request that never holds two leases.

::

    directories    who is in the fleet                     errors     why nobody took a request
    book           what is known of each node              journey    one request on its way, without I/O
    sync, aio      the calls: threads, or tasks            following  a directory in a thread of its own
    shell          what both do without waiting

The rules (what a view says, whom to ask, when to leave a node alone) are in `hisparse_core::fleet`.
"""

from hisparse_svc.fleet.book import NodeView, Ranked
from hisparse_svc.fleet.directories import (
    Directory,
    DnsName,
    EndpointSlices,
    Hint,
    KubernetesNodes,
    Member,
    StaticList,
    WatchedFile,
)
from hisparse_svc.fleet.errors import (
    AllDraining,
    Attempt,
    EmptyFleet,
    FleetBusy,
    FleetQuota,
    NeverFitsAnywhere,
    NoNodeAnswers,
    RetriesSpent,
    UnknownNode,
    Unsettled,
)
from hisparse_svc.fleet.sync import Fleet
from hisparse_svc.fleet.sync_node import HeldLease

__all__ = [
    "AllDraining",
    "Attempt",
    "Directory",
    "DnsName",
    "EmptyFleet",
    "EndpointSlices",
    "Fleet",
    "FleetBusy",
    "FleetQuota",
    "HeldLease",
    "Hint",
    "KubernetesNodes",
    "Member",
    "NeverFitsAnywhere",
    "NoNodeAnswers",
    "NodeView",
    "Ranked",
    "RetriesSpent",
    "StaticList",
    "UnknownNode",
    "Unsettled",
    "WatchedFile",
]
