"""What a case may need of a service, so that its rule can be shown there."""

from __future__ import annotations

NEEDS = {
    "idle": "the node must be this suite's alone: others hold something here, so exact counts mean nothing",
    "unbounded": "quotas bound the suite's tenant below the node's longest request: it cannot fill the node",
    "destructive": "it disturbs every caller of the node: allow it with --destructive",
    "admin": "this caller has not the role of an operator",
    "limits": "the service did not say its limits",
    "engine": "the service has no EngineService here: it serves one on a Unix socket beside an attach socket",
    "no engine": "the service has an EngineService here",
}
"""What a case may need, with the reason it is skipped for where that is not so."""
