"""A driver of real Ray Serve in a process of its own: prints what it saw, as one line of JSON.

Three replicas with nodes of their own, behind the capacity router; then one replica beside a node that outlives it.
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
from hisparse_svc import Client, NeverFits, PoolBusy
from hisparse_svc.integrations.ray import CapacityRouter, NodeReplica
from ray import serve
from ray.serve.config import RequestRouterConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TTL_S = 2.0
WAIT_S = 2.0
BIG = {"prompt_tokens": 200_000, "max_new_tokens": 1_000, "hold_s": 60.0}
"""More than half of a node: two of them never share one."""


class Embedded(NodeReplica):
    """A replica with its own node."""

    def __init__(self, sidecar: str = "") -> None:
        if sidecar:
            self.use_node(sidecar)
        else:
            self.start_node(backing="none", host_pool="16GiB", kv_bytes="64GiB")

    async def __call__(self, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        async with self.lease(request["prompt_tokens"], request["max_new_tokens"], lease_ttl_s=TTL_S) as held:
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


def deployed(name: str, replicas: int, *given: Any, router: type = CapacityRouter) -> Any:
    """Serve."""
    config = RequestRouterConfig(request_router_class=router, request_router_kwargs={"wait_s": WAIT_S})
    options = {"num_replicas": replicas, "max_ongoing_requests": 100, "ray_actor_options": {"num_cpus": 0.1}}
    deployment = serve.deployment(name=name, request_router_config=config, **options)(Embedded)
    handle = serve.run(deployment.bind(*given), name=name, route_prefix=None)
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
    after = iter(handle.remote(BIG | {"hold_s": 0.1}))  # the others are full: it takes the new replica
    began, first = time.monotonic(), None
    while first is None and time.monotonic() - began < 30:
        try:
            first = next(after)
        except Exception:  # not there yet
            time.sleep(0.2)
            after = iter(handle.remote(BIG | {"hold_s": 0.1}))
    seen["new_replica_is_another_node"] = first is not None and first["target"] not in targets
    seen["left_on_new_replica"] = first and until(lambda: leases(first["target"]), [])
    for stream in (again, streams[2]):
        stream.cancel()
    seen["left_on_others"] = [until(lambda at=at: leases(at), []) for at in (targets[0], targets[2])]


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


def main() -> None:
    """Play both."""
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    seen: dict[str, Any] = {}
    try:
        embedded(seen)
        sidecar(seen, sys.argv[1])
    finally:
        sys.stdout.write(json.dumps(seen) + "\n")
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main()
