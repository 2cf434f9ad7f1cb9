"""The JSON of `replay`: the node's half, and beside it the same trace with the device pool as the limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hisparse_svc import _core
from hisparse_svc.planner.plan import plan_from
from hisparse_svc.replay.options import MAX_REQUESTS, NODE, Options

if TYPE_CHECKING:
    from collections.abc import Callable

    from hisparse_svc._core import Plan, Trace

    Progress = Callable[[int], None]

HOST_ONLY = ("host_pool", "ratio", "hot_rows")
"""Arguments of a plan that mean nothing without a host pool."""


def plans(model: str, arguments: dict[str, Any]) -> tuple[Plan, Plan]:
    """Give the node's plan, and that of the same GPU without a host pool.

    Raises:
        InvalidInput: As `hisparse_svc.plan`.
    """
    chosen = {**NODE, **arguments}
    if "ratio" in arguments and "host_pool" not in arguments:
        chosen.pop("host_pool")
    if "gpu" in arguments and "kv_bytes" not in arguments:
        chosen.pop("kv_bytes")
    alone = {name: value for name, value in chosen.items() if name not in HOST_ONLY}
    return plan_from(model, chosen), plan_from(model, {**alone, "hisparse": False})


def play(
    trace: Trace, plan: Plan, options: Options, request_slots: int = MAX_REQUESTS, progress: Progress | None = None
) -> dict[str, Any]:
    """Play a trace on a plan's node, in virtual time.

    Returns:
        `outcome` and `timeline`.
    """
    return _core.replay_trace(
        trace,
        plan,
        request_slots=request_slots,
        max_wait_s=options.max_wait_s,
        decode_ms=options.decode_ms,
        prefill_tps=options.prefill_tps,
        progress=progress,
    )


def together(played: dict[str, Any], alone: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """Give the document of both halves."""
    return {
        **played["outcome"],
        "device_only": alone["outcome"],
        "node": node,
        "timeline": played["timeline"],
        "device_only_timeline": alone["timeline"],
    }


def in_process(
    trace: Trace,
    model: str = "glm-5.2",
    arguments: dict[str, Any] | None = None,
    options: Options | None = None,
    *,
    request_slots: int = MAX_REQUESTS,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Play a trace in process, in virtual time, on a node and on its device alone.

    Args:
        trace: The trace.
        model: A preset, a config.json, or its folder.
        arguments: Those of `hisparse_svc.plan`, over the defaults of `NODE`.
        options: How the engine behaves.
        request_slots: Requests that the engine's tables hold.
        progress: Told how many requests have arrived, of both halves together.

    Returns:
        The document of `hisparse-svc replay --json`.
    """
    plan, device = plans(model, arguments or {})
    chosen = options or Options()
    count = len(trace)
    second = None if progress is None else lambda arrived: progress(count + arrived)
    played = play(trace, plan, chosen, request_slots, progress)
    alone = play(trace, device, chosen, request_slots, second)
    node = {
        "mode": "in process",
        "model": plan.model.name,
        "kv_dtype": plan.layout.kv_dtype,
        "kv_bytes": plan.kv_bytes,
        "host_bytes": plan.host_bytes,
        "seats": plan.seats,
        "request_slots": request_slots,
        "device_pool_tokens": device.logical_tokens,
    }
    return together(played, alone, node)
