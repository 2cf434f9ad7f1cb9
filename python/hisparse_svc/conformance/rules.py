"""What a service promises its callers: each case shows one of these."""

from __future__ import annotations

RULES = {
    "atomic": "A decision covers every pool at once: all that a request needs, or nothing.",
    "whole-length": "A grant holds the whole length asked for; growing beyond it goes through Extend.",
    "idempotent": "A request id names one lease; a repeated call changes nothing; Release never fails for being late.",
    "lifetime": "A lease ends by Release or by its time, and what ran out of time is quarantined, not free.",
    "epoch": "Commit, Renew and Extend of another generation are refused with the current one; Release never is.",
    "refusals": "Malformed, never fits, busy and unavailable are told apart by code, reason and details below 4 KiB.",
    "deadline": "Work past its caller's deadline never touches the ledger; Release is answered when Admit is not.",
    "fresh": "What a call changed, the next call sees; watchers see it soon, in order, and without a gap.",
    "conserved": "total = free + reserved + committed + evictable + scrubbing + quarantined, in every pool, always.",
    "isolation": "A tenant's leases are its own; a role does what its role may.",
    "planner": "The planner's answers are pure functions of what is asked.",
    "standard": "Health and reflection speak as gRPC defines them.",
}
"""Every rule by its name."""
