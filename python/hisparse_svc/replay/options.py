"""How the replay's engine behaves, and how fast time goes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hisparse_svc.errors import InvalidInput, Problem

NODE = {"kv_bytes": "20GiB", "host_pool": "160GiB", "hot_rows": 4_096}
"""The node that a trace is played on where nothing else is said."""

MAX_REQUESTS = 1_024
"""Rows of the engine's request tables."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How the engine behaves; times are those of the trace."""

    max_wait_s: float = 30.0
    """A request that has waited so long is refused."""
    decode_ms: float = 50.0
    """Time for one token."""
    prefill_tps: int = 20_000
    """Tokens prefilled in a second, per request."""
    speed: float = math.inf
    """Trace seconds per second, against a server; `inf` plays every event in its order, as fast as answers come."""

    def __post_init__(self) -> None:
        """Refuse what is out of range, all of it together."""
        bounds = {
            "--max-wait": (self.max_wait_s, 0.0, 600.0, "seconds from 0 to 600"),
            "--decode-ms": (self.decode_ms, 0.0, 60_000.0, "milliseconds from 0 to 60000"),
            "--prefill-tps": (self.prefill_tps, 1, 10**9, "a whole number from 1 to 1000000000"),
        }
        problems = [
            Problem(field, str(value), f"must be {rule}", "give such a number")
            for field, (value, least, most, rule) in bounds.items()
            if not least <= value <= most
        ]
        if not self.speed > 0:
            problems.append(Problem("--speed", str(self.speed), "must be above 0, or max", "write 1, 10 or max"))
        if problems:
            raise InvalidInput(problems)

    def running_us(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> int:
        """Give how long a request runs, in microseconds: the prompt it does not find in the cache, then its output."""
        prefill_us = max(prompt_tokens - cached_tokens, 0) * 1_000_000 // self.prefill_tps
        return prefill_us + output_tokens * round(self.decode_ms * 1_000)
