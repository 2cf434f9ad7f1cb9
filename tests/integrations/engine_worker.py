"""An engine in a process of its own, to be killed: it attaches, decodes, and says after each step what it has."""

from __future__ import annotations

import faulthandler
import time
from typing import TYPE_CHECKING, Any

import hisparse_svc
import torch
from hisparse_svc import HiSparseError
from hisparse_svc.engine import HostPool
from hisparse_svc.integrations.transformers import ContinuousBatch, Generation, HostKv

from tests.integrations import models

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SETTINGS: dict[str, Any] = {"kv_dtype": "float32", "hot_rows": 128, "kv_bytes": 48 << 20, "host_pool": 96 << 20}
FLAGS = ["--kv-dtype", "float32", "--hot-rows", "128", "--kv-bytes", "48MiB", "--host-pool", "96MiB"]


def driver_over(pool: HostPool, family: str, config: str) -> ContinuousBatch:
    """A model in float32 over a pool in float32, which the service owns."""
    plan = hisparse_svc.plan(config, **SETTINGS)
    return ContinuousBatch(HostKv.over(models.make(family), pool, plan), publish_to=pool)


def run(pipe: Connection, target: str, family: str, config: str) -> None:
    """Be told of requests, those of a dead engine among them; decode until all are done."""
    faulthandler.enable()
    torch.set_num_threads(1)
    with HostPool.attach(target) as pool:
        driver = driver_over(pool, family, config)
        pipe.send(pool.token)
        token, requests = pipe.recv()
        reclaimed = {one.lease.id: one for one in claim(pool, token)} if token else {}
        generations = []
        for prompt, new, tokens, lease_id in requests:
            back = reclaimed.get(lease_id)
            generations.append(Generation(prompt, new, tokens=list(tokens)))
            if back is not None:
                generations[-1].lease, generations[-1].durable_tokens = back.lease, back.durable_tokens
            driver.resume(generations[-1])
        pipe.send([one.durable_tokens for one in generations])
        while driver.waiting or driver.running:
            driver.step()
            pipe.send([(list(one.tokens), one.lease.id if one.lease else "") for one in generations])
        pipe.send(None)


def claim(pool: HostPool, token: bytes) -> tuple[Any, ...]:
    """Take over what a dead engine held, once the service has seen it die."""
    for _ in range(100):
        try:
            return pool.reclaim(token)
        except HiSparseError:
            time.sleep(0.1)
    return pool.reclaim(token)
