"""Many nodes as one: who they are, which one to ask, and a request that never holds two leases.

::

    directories    who is in the fleet                     errors     why nobody took a request

The rules (what a view says, whom to ask, when to leave a node alone) are in `hisparse_core::fleet`.
"""

from hisparse_svc.fleet.directories import Directory, DnsName, EndpointSlices, Member, StaticList, WatchedFile
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

__all__ = [
    "AllDraining",
    "Attempt",
    "Directory",
    "DnsName",
    "EmptyFleet",
    "EndpointSlices",
    "FleetBusy",
    "FleetQuota",
    "Member",
    "NeverFitsAnywhere",
    "NoNodeAnswers",
    "RetriesSpent",
    "StaticList",
    "UnknownNode",
    "Unsettled",
    "WatchedFile",
]
