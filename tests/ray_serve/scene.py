"""A driver of real Ray Serve in a process of its own: prints what it saw, as one line of JSON.

Three replicas with nodes of their own, behind the capacity router; then one replica beside a node that outlives it, and
one that is attached to such a node.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import ray
from hisparse_svc import Client, InvalidInput, NeverFits, PoolBusy
from hisparse_svc.integrations.ray import CapacityRouter, NodeReplica
from hisparse_svc.integrations.ray.router import HOLD_BACK_S
from ray import serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TTL_S = 2.0
WAIT_S = 2.0
BIG = {"prompt_tokens": 200_000, "max_new_tokens": 1_000, "hold_s": 60.0}
"""More than half of a node: two of them never share one."""

PREFIX = [bytes([page]) * 32 for page in range(64)]
LIKE = {"prompt_tokens": 4_096, "max_new_tokens": 64, "prefix_hashes": PREFIX}
"""Requests that share their whole prompt."""

OTHERS: list[dict[str, Any]] = [{}, {}, {"prefix_hashes": [bytes(32)] * 64}, {"prefix_hashes": []}, {}]
"""What is asked for besides: two of its prefix, one of another, one of none, and again one of it."""


class Decode(NodeReplica):
    """A replica with its own node, beside one, or attached to one."""

    def __init__(self, sidecar: str = "", *, attached: bool = False) -> None:
        self.ttl_s: float | None = TTL_S
        if attached:
            self.attach_node(sidecar)
            self.ttl_s = None
        elif sidecar:
            self.use_node(sidecar)
        else:
            self.start_node(backing="none", host_pool="16GiB", kv_bytes="64GiB")

    async def __call__(self, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        asked = {name: request[name] for name in ("prompt_tokens", "max_new_tokens")}
        asked["prefix_hashes"] = request.get("prefix_hashes", ())
        async with self.lease(**asked, lease_ttl_s=self.ttl_s) as held:
            yield {"pid": os.getpid(), "target": self._target, "lease": held.lease.id}
            await asyncio.sleep(request["hold_s"])
            yield {}


class Odd(CapacityRouter):
    """A router whose author made a mistake."""

    def request_of(self, pending: Any) -> Any:
        raise KeyError(pending.args)


def until(looked: Any, wanted: Any, longest_s: float = 20.0) -> Any:
    """Look until it is as wanted; give the last look."""
    over = time.monotonic() + longest_s
    while (seen := looked()) != wanted and time.monotonic() < over:
        time.sleep(0.05)
    return seen


def leases(target: str) -> list[str]:
    """Give the leases of a node."""
    with Client(target, timeout_s=2.0) as client:
        return [lease.id for lease in client.list_leases()]


def states(target: str) -> list[str]:
    """Give where the leases of a node stand."""
    with Client(target, timeout_s=2.0) as client:
        return [str(lease.state) for lease in client.list_leases()]


def deployed(name: str, replicas: int, *given: Any, router: type[CapacityRouter] = CapacityRouter, **more: Any) -> Any:
    """Serve."""
    config = router.config(wait_s=WAIT_S)
    options = {"num_replicas": replicas, "max_ongoing_requests": 100, "ray_actor_options": {"num_cpus": 0.1}}
    deployment = serve.deployment(name=name, request_router_config=config, **options)(Decode)
    handle = serve.run(deployment.bind(*given, **more), name=name, route_prefix=None)
    return handle.options(stream=True)


def refusal(handle: Any, request: dict[str, Any], kind: type[Exception]) -> bool:
    """Whether the caller gets what the node said."""
    try:
        next(iter(handle.remote(request)))
    except kind:
        return True
    return False


def kill(told: dict[str, Any], stream: Any) -> str:
    """Kill a stream's replica; give how the stream ended."""
    os.kill(told["pid"], signal.SIGKILL)
    try:
        next(stream)
    except Exception as failure:
        return type(failure).__name__
    return "went on"


def configured(seen: dict[str, Any]) -> None:
    """Settings that no router takes."""
    seen["wrong_settings"] = []
    for wrong in ({"policy": "luck"}, {"attempt_s": 0}, {"wait_s": -1}, {"wait_s": "long", "attempt_s": 0}):
        try:
            CapacityRouter.config(**wrong)
        except InvalidInput as refused:
            seen["wrong_settings"].append([problem.field for problem in refused.problems])


def embedded(seen: dict[str, Any]) -> None:
    """Three replicas, each full after one request."""
    handle = deployed("embedded", 3)
    streams, told = [], []
    for _ in range(3):
        streams.append(iter(handle.remote(BIG)))
        told.append(next(streams[-1]))
    targets = [each["target"] for each in told]
    seen["nodes_of_three_that_fit_one_each"] = len(set(targets))
    seen["busy_when_all_are_full"] = refusal(handle, BIG, PoolBusy)
    seen["never_fits"] = refusal(handle, BIG | {"prompt_tokens": 10_000_000}, NeverFits)

    streams[0].cancel()  # the caller goes away
    seen["left_after_cancel"] = until(lambda: leases(targets[0]), [])
    again = iter(handle.remote(BIG))
    seen["goes_where_room_came"] = next(again)["target"] == targets[0]

    seen["killed_stream"] = kill(told[1], streams[1])
    first = retried(handle, BIG | {"hold_s": 0.1})  # the others are full: it takes the new replica
    seen["new_replica_is_another_node"] = first is not None and first["target"] not in targets
    seen["left_on_new_replica"] = first and until(lambda: leases(first["target"]), [])
    for stream in (again, streams[2]):
        stream.cancel()
    seen["left_on_others"] = [until(lambda at=at: leases(at), []) for at in (targets[0], targets[2])]
    prefixes(seen, handle)


def prefixes(seen: dict[str, Any], handle: Any) -> None:
    """While a node is busy with one, others of its prefix go there all the same; a request without it does not."""
    first = iter(handle.remote(LIKE | {"hold_s": 5.0}))
    busy = next(first)["target"]
    time.sleep(3 * HOLD_BACK_S)
    places = [next(iter(handle.remote({**LIKE, **other, "hold_s": 0.0})))["target"] for other in OTHERS]
    seen["goes_where_its_prefix_is"] = [place == busy for place in places]
    first.cancel()
    seen["no_hash"] = refusal(handle, LIKE | {"prefix_hashes": ["no hash"], "hold_s": 0.0}, InvalidInput)


def sidecar(seen: dict[str, Any], target: str) -> None:
    """One replica beside a node; the node stays when the replica is killed."""
    handle = deployed("sidecar", 1, target, router=Odd)
    seen["answered_past_a_mistake"] = bool(next(iter(handle.remote(BIG | {"prompt_tokens": 100, "hold_s": 0.0}))))
    until(lambda: leases(target), [])
    stream = iter(handle.remote(BIG))
    told = next(stream)
    time.sleep(1.5 * TTL_S)
    seen["sidecar_renewed"] = leases(target) == [told["lease"]]
    seen["sidecar_killed_stream"] = kill(told, stream)
    seen["sidecar_left"] = until(lambda: states(target), ["quarantined"], TTL_S + 10.0)


def attached(seen: dict[str, Any], target: str) -> None:
    """One replica that is attached to a node; the node sees it die."""
    handle = deployed("attached", 1, target, attached=True)
    stream = iter(handle.remote({"prompt_tokens": 100, "max_new_tokens": 10, "hold_s": 60.0}))
    told = next(stream)
    with Client(target, timeout_s=2.0) as client:
        lease = client.get_lease(told["lease"])
        seen["attached_never_expires"] = lease.expires_at is None
        os.kill(told["pid"], signal.SIGKILL)
        killed = time.monotonic()
        seen["attached_left"] = until(lambda: [str(lease.state) for lease in client.list_leases()], ["quarantined"])
        seen["attached_ended_s"] = time.monotonic() - killed
        seen["attached_gone"] = until(client.list_leases, [])
        seen["attached_gone_s"] = time.monotonic() - killed
    again = retried(handle, {"prompt_tokens": 100, "max_new_tokens": 10, "hold_s": 0.0})
    seen["attached_again"] = again is not None and again["pid"] != told["pid"]


def retried(handle: Any, request: dict[str, Any], longest_s: float = 30.0) -> dict[str, Any] | None:
    """Send until a new replica answers; give its first word."""
    over = time.monotonic() + longest_s
    while time.monotonic() < over:
        try:
            return dict(next(iter(handle.remote(request))))
        except Exception:  # not there yet
            time.sleep(0.2)
    return None


def main() -> None:
    """Play all three."""
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    serve.start(proxy_location="Disabled")  # no HTTP, so no port that others may have
    seen: dict[str, Any] = {}
    try:
        configured(seen)
        embedded(seen)
        sidecar(seen, sys.argv[1])
        attached(seen, sys.argv[2])
    finally:
        sys.stdout.write(json.dumps(seen) + "\n")
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main()
