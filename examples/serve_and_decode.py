"""A service, an engine and a router, each a process: the router admits a small trace, the engine decodes it.

    service   hisparse-svc serve ── ledger, host pool
                 ▲ Admit                    ▲ attach: the pool's memory; Commit, Release
    router ──────┘                          │
       └── lease, prompt ────────────► engine: a transformers model, KV in the service's pool ── tokens ──► router

    python examples/serve_and_decode.py [--requests 10]

A tiny random GLM in bfloat16 on the CPU; about a minute. Needs `pip install 'hisparse-svc[transformers]'`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import decode_on_cpu
import hisparse_svc
import torch
from hisparse_svc import Client, Refused
from hisparse_svc.engine import HostPool
from hisparse_svc.integrations.transformers import ContinuousBatch, HostKv, config_json

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

CONTEXT_TOKENS = 1024
PLAN: dict[str, Any] = {"kv_dtype": "fp8_e4m3", "hot_rows": 128, "kv_bytes": 4 << 20, "host_pool": 4 << 20}


def make_model() -> Any:
    """The engine's model; the service needs its configuration alone."""
    torch.manual_seed(0)
    return decode_on_cpu.glm(CONTEXT_TOKENS).to(torch.bfloat16)


def run_engine(pipe: Connection, target: str, config: str) -> None:
    """Decode what comes over the pipe, until None comes; send back who is done."""
    torch.set_num_threads(1)
    with HostPool.attach(target) as pool:
        kv = HostKv.over(make_model(), pool, hisparse_svc.plan(config, **PLAN))
        driver = ContinuousBatch(kv, publish_to=pool)
        pipe.send("ready")
        names: dict[Any, str] = {}
        open_for_more = True
        while open_for_more or driver.running or driver.waiting:
            while open_for_more and (pipe.poll() or not (driver.running or driver.waiting)):
                order = pipe.recv()
                if order is None:
                    open_for_more = False
                else:
                    name, lease_id, prompt, new = order
                    names[driver.submit(prompt, new, lease=kv.client.get_lease(lease_id))] = name
            if driver.running or driver.waiting:
                driver.step()
            for generation in [one for one in names if one.done]:
                pipe.send((names.pop(generation), generation.tokens))
        pipe.send(kv.swapped_rows)


def route(client: Client, pipe: Connection, requests: int) -> int:
    """Admit a trace, each request as soon as there is room; give the rows that were swapped in."""
    chance = random.Random(7)  # noqa: S311 - a trace, not secrets
    waiting = deque(
        (f"request {number}", [chance.randrange(512) for _ in range(chance.randint(10, 500))], chance.randint(8, 32))
        for number in range(requests)
    )
    refused, running, began = 0, 0, time.monotonic()
    while waiting or running:
        while waiting:
            name, prompt, new = waiting[0]
            try:
                lease = client.admit(prompt_tokens=len(prompt), max_new_tokens=new, request_id=name).lease
            except Refused as no:
                refused += 1
                print(f"{time.monotonic() - began:6.1f} s  {name}: {no.reason}; {running} run")
                break
            waiting.popleft()
            running += 1
            print(f"{time.monotonic() - began:6.1f} s  {name}: {len(prompt)} tokens, {lease.pages} pages reserved")
            pipe.send((name, lease.id, prompt, new))
        name, tokens = pipe.recv()
        running -= 1
        print(f"{time.monotonic() - began:6.1f} s  {name}: {len(tokens)} tokens: {tokens[:6]} …")
    pipe.send(None)
    swapped: int = pipe.recv()
    print(f"{requests} requests decoded, {refused} times refused and asked again, {swapped} rows swapped in")
    return swapped


def main() -> None:
    """Start the service and the engine, and route."""
    parser = argparse.ArgumentParser(description="service, engine and router, each a process")
    parser.add_argument("--requests", type=int, default=10)
    requests = parser.parse_args().requests
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(config_json(make_model()), encoding="utf-8")
        socket = Path(folder) / "node.sock"
        flags = ["--model", str(config), "--backing", "memory", "--http", "off", "--socket", str(socket)]
        flags += [part for name, value in PLAN.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        serve = [sys.executable, "-m", "hisparse_svc", "serve", *flags]
        with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as service:
            assert service.stdout is not None
            print(service.stdout.readline().strip())
            context = multiprocessing.get_context("spawn")
            here, there = context.Pipe()
            target = f"unix:{socket}"
            engine = context.Process(target=run_engine, args=(there, target, str(config)))
            engine.start()
            there.close()
            try:
                assert here.recv() == "ready"
                with Client(target) as client:
                    assert route(client, here, requests) > 0
                    engine.join()
                    seats = client.get_capacity().pool("seats")
                    assert seats.free == seats.total, "a lease was left behind"
            finally:
                engine.kill()
                service.terminate()


if __name__ == "__main__":
    main()
