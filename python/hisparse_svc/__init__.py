"""Host-backed KV for long-context sparse attention: budgets, admission, swap-in.

A module is imported when one of its names is first used: a plan never pays for gRPC, nor the command line for a plan.

>>> import hisparse_svc
>>> plan = hisparse_svc.plan("glm-5.2", ratio=4, context=[131072])
>>> plan.cell_bytes
62256
"""

from __future__ import annotations

TYPE_CHECKING = False  # as `typing` has it, whose import is most of what `import hisparse_svc` would take

if TYPE_CHECKING:
    from hisparse_svc._core import Model, Plan, Preset, Validation, __version__
    from hisparse_svc.client import Client, HeldLease
    from hisparse_svc.errors import HiSparseError, InvalidInput, Problem
    from hisparse_svc.node import Node
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

_HOMES = {
    "_core": ("Model", "Plan", "Preset", "Validation", "__version__"),
    "client": ("Client", "HeldLease"),
    "errors": ("HiSparseError", "InvalidInput", "Problem"),
    "node": ("Node",),
    "planner.models": ("load_model", "models"),
    "planner.plan": ("plan",),
    "planner.validate": ("validate",),
    "rpc.refusals": (
        "DeadlineExceeded",
        "Draining",
        "LeaseNotFound",
        "NeverFits",
        "NoAnswer",
        "NotAllowed",
        "NotThisEngine",
        "OtherTenant",
        "Overloaded",
        "PoolBusy",
        "QuotaExceeded",
        "Recovering",
        "Refused",
        "RequestIdReused",
        "ServerFault",
        "StaleEpoch",
        "TurnedAway",
        "Unreachable",
        "Unsupported",
    ),
    "rpc.tls": ("Tls",),
    "rpc.tracing": ("traced",),
    "rpc.values": ("Admission", "Capacity", "Decision", "Extent", "Fit", "Lease", "LeaseState", "Pool", "Request"),
}
"""The names of each module that are given here."""


def __getattr__(name: str) -> object:
    """Import a name's module at the name's first use."""
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - only ever needed here

    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List what can be asked for, also what was not yet."""
    return sorted({*globals(), *__all__})
