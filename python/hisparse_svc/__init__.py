"""Host-backed KV for long-context sparse attention: budgets, admission, swap-in.

>>> import hisparse_svc
>>> plan = hisparse_svc.plan("glm-5.2", ratio=4, context=[131072])
>>> plan.cell_bytes
62256
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hisparse_svc._core import Model, Plan, Preset, Validation, __version__
from hisparse_svc.errors import HiSparseError, InvalidInput, Problem
from hisparse_svc.planner.models import load_model, models
from hisparse_svc.planner.plan import plan
from hisparse_svc.planner.validate import validate
from hisparse_svc.rpc.refusals import (
    DeadlineExceeded,
    Draining,
    LeaseNotFound,
    NeverFits,
    NoAnswer,
    NotAllowed,
    NotThisEngine,
    OtherTenant,
    Overloaded,
    PoolBusy,
    QuotaExceeded,
    Recovering,
    Refused,
    RequestIdReused,
    ServerFault,
    StaleEpoch,
    TurnedAway,
    Unreachable,
    Unsupported,
)
from hisparse_svc.rpc.tls import Tls
from hisparse_svc.rpc.tracing import traced
from hisparse_svc.rpc.values import Admission, Capacity, Decision, Extent, Fit, Lease, LeaseState, Pool, Request

if TYPE_CHECKING:
    from hisparse_svc.client import Client, HeldLease
    from hisparse_svc.node import Node

__all__ = [
    "Admission",
    "Capacity",
    "Client",
    "DeadlineExceeded",
    "Decision",
    "Draining",
    "Extent",
    "Fit",
    "HeldLease",
    "HiSparseError",
    "InvalidInput",
    "Lease",
    "LeaseNotFound",
    "LeaseState",
    "Model",
    "NeverFits",
    "NoAnswer",
    "Node",
    "NotAllowed",
    "NotThisEngine",
    "OtherTenant",
    "Overloaded",
    "Plan",
    "Pool",
    "PoolBusy",
    "Preset",
    "Problem",
    "QuotaExceeded",
    "Recovering",
    "Refused",
    "Request",
    "RequestIdReused",
    "ServerFault",
    "StaleEpoch",
    "Tls",
    "TurnedAway",
    "Unreachable",
    "Unsupported",
    "Validation",
    "__version__",
    "load_model",
    "models",
    "plan",
    "traced",
    "validate",
]

_LAZY = {
    "Client": "hisparse_svc.client",
    "HeldLease": "hisparse_svc.client",
    "Node": "hisparse_svc.node",
}
"""What brings in gRPC: imported when it is first asked for, so that a plan never pays for it."""


def __getattr__(name: str) -> Any:
    """Import a lazy name on its first use."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415 - as the rest of what is lazy here

    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
