"""Three replicas of Ray Serve, each with a node, play a trace: which router finds room?

    python examples/ray_serve.py [--router capacity|default] [--speed 10] [--load 0.9] [--json]

    driver ── trace ─► handle ─► router ─► replica: lease for the length of the stream ─► its node's ledger
                                 capacity: hisparse_svc.integrations.ray;  default: Ray's power of two choices

The nodes keep ledgers only, so it needs no GPU, and about half a minute. A request's decode is played as a wait.
Needs `pip install 'hisparse-svc[ray]'`; in a checkout `make test-ray` puts Ray into a folder of its own:
`PYTHONPATH=target/ray:python .venv/bin/python examples/ray_serve.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import math
import time
from typing import TYPE_CHECKING, Any

try:
    import ray
    from ray import serve
    from ray.serve.config import RequestRouterConfig
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}: this example needs Ray Serve: pip install 'hisparse-svc[ray]'") from None
from hisparse_svc import HiSparseError, plan
from hisparse_svc.integrations.ray import CapacityRouter, NodeReplica
from hisparse_svc.replay.options import Options
from hisparse_svc.replay.samples import load_trace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

REPLICAS = 3
KV_BYTES = "64GiB"
"""Enough seats that pages are what binds."""


class Decode(NodeReplica):
    """An engine that does nothing but take its time."""

    def __init__(self, host_bytes: int) -> None:
        self.start_node(backing="none", host_pool=host_bytes, kv_bytes=KV_BYTES)

    async def __call__(self, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Say when the lease is here, and then that the last token is."""
        patience_s = max(request["until"] - time.time(), 0.0)  # what the router has left of it
        async with self.lease(request["prompt_tokens"], request["max_new_tokens"], wait_s=patience_s) as held:
            yield {"granted_at": time.time(), "epoch": held.lease.epoch}
            await asyncio.sleep(request["running_s"])
            yield {}

    async def leases(self) -> tuple[int, int]:
        """Give this node's epoch, and how many leases it holds."""
        assert self._node is not None
        return self._node.client.get_capacity().epoch, len(self._node.client.list_leases())


def host_bytes(requests: list[tuple[int, int, int]], options: Options, load: float) -> int:
    """Give the pool of one node, so that the trace is `load` of what all of them hold on average."""
    pages = [-(-(prompt + output) // 64) for _, prompt, output in requests]
    span_s = max((requests[-1][0] - requests[0][0]) / 1_000, 1.0)
    used = sum(
        count * options.running_us(prompt, 0, output) / 1e6 / span_s
        for count, (_, prompt, output) in zip(pages, requests, strict=True)
    )
    planned = plan("glm-5.2", kv_dtype="fp8_e4m3", host_pool="16GiB", kv_bytes=KV_BYTES)
    per_page = planned.host_bytes / (planned.logical_tokens // 64)
    return math.ceil((max(math.ceil(used / load / REPLICAS), *pages) + 1) * per_page)


async def play(handle: Any, requests: list[tuple[int, int, int]], options: Options) -> dict[str, Any]:
    """Send every request at its time; give what became of them."""
    waits_ms: list[float] = []
    firsts_ms: list[float] = []
    refused: collections.Counter[str] = collections.Counter()
    by_node: collections.Counter[int] = collections.Counter()
    began = time.time()

    async def one(at_ms: int, prompt: int, output: int) -> None:
        await asyncio.sleep(max(began + (at_ms - requests[0][0]) / 1_000 / options.speed - time.time(), 0.0))
        sent = time.time()
        request = {
            "prompt_tokens": prompt,
            "max_new_tokens": output,
            "until": sent + options.max_wait_s / options.speed,
        }
        request["running_s"] = options.running_us(prompt, 0, output) / 1e6 / options.speed
        try:
            async for told in handle.options(stream=True).remote(request):
                if told:
                    firsts_ms.append((time.time() - sent) * 1_000)
                    waits_ms.append((told["granted_at"] - sent) * 1_000)
                    by_node[told["epoch"]] += 1
        except HiSparseError as failure:  # Ray raises it here as what the replica's node said
            refused[getattr(failure, "reason", "") or type(getattr(failure, "cause", failure)).__name__] += 1

    async with asyncio.TaskGroup() as tasks:
        for request in requests:
            tasks.create_task(one(*request))
    return {
        "requests": len(requests),
        "admitted": len(waits_ms),
        "refused": dict(refused),
        "wait_ms": spread(waits_ms),
        "first_grant_ms": spread(firsts_ms),
        "admitted_by_node": sorted(by_node.values()),
        "seconds": round(time.time() - began, 1),
    }


def spread(values: list[float]) -> dict[str, float]:
    """Give the middle, the tail and the mean."""
    ordered = sorted(values)
    at = {"p50": len(ordered) // 2, "p90": len(ordered) * 9 // 10, "p99": len(ordered) * 99 // 100}
    told = {name: ordered[place] for name, place in at.items()} | {"max": ordered[-1]}
    told |= {"mean": sum(ordered) / len(ordered), "first": values[0]}
    return {name: round(value, 1) for name, value in told.items()}


def main() -> None:
    """Serve, play, print."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--router", choices=("capacity", "default"), default="capacity")
    asked.add_argument("--trace", default="sample")
    asked.add_argument("--requests", type=int)
    asked.add_argument("--speed", type=float, default=10.0, help="trace seconds per second")
    asked.add_argument("--max-wait", type=float, default=30.0, help="patience, in trace seconds")
    asked.add_argument("--load", type=float, default=0.9)
    asked.add_argument("--json", action="store_true", help="print the result alone, as JSON")
    given = asked.parse_args()
    options = Options(speed=given.speed, max_wait_s=given.max_wait)
    requests = load_trace(given.trace, given.requests).requests()
    config = RequestRouterConfig()
    if given.router == "capacity":
        wait_s = given.max_wait / given.speed
        config = CapacityRouter.config(wait_s=wait_s)
    ray.init(num_cpus=REPLICAS + 1, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(proxy_location="Disabled", logging_config={"enable_access_log": False})  # no HTTP, so no port
        deployment = serve.deployment(
            num_replicas=REPLICAS,
            max_ongoing_requests=1_000,  # pages are to bind, not this
            ray_actor_options={"num_cpus": 0.1},
            request_router_config=config,
        )(Decode)
        handle = serve.run(deployment.bind(host_bytes(requests, options, given.load)), route_prefix=None)
        played = asyncio.run(play(handle, requests, options))
        left = dict(
            handle.leases.remote().result() for _ in range(8 * REPLICAS)
        )  # routed anywhere: often enough for all
        played = {"router": given.router, **played, "nodes_looked_at": len(left), "leases_left": sum(left.values())}
    finally:
        serve.shutdown()
        ray.shutdown()
    print(json.dumps(played) if given.json else told(played))


def told(played: dict[str, Any]) -> str:
    """Give the result in words."""
    refused = ", ".join(f"{count} {why}" for why, count in played["refused"].items()) or "none"
    nodes = ", ".join(str(count) for count in played["admitted_by_node"])
    lines = [
        f"router {played['router']}: {played['requests']} requests in {played['seconds']} s",
        f"  admitted         {played['admitted']} (on each node: {nodes}); refused: {refused}",
    ]
    for key, words in (("wait_ms", "wait for a lease"), ("first_grant_ms", "told the caller")):
        spread = played[key]
        lines.append(
            f"  {words:16} mean {spread['mean']} ms, p50 {spread['p50']}, p90 {spread['p90']}, p99 {spread['p99']}"
        )
    lines.append(f"  leases left      {played['leases_left']} on {played['nodes_looked_at']} nodes")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
