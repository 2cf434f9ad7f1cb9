"""Two ranks in two processes over one host copy: the same results as one rank, and the host's bytes counted once."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hisparse_svc
import pytest
import torch
from hisparse_svc.engine import DecodeSession, DecodeShape, HostCopy

from tests.decode import rank_worker
from tests.serve.conftest import start

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SETTINGS: dict[str, Any] = {"kv_dtype": "fp8_e4m3", "hot_rows": 64, "kv_bytes": 3 << 20, "host_pool": 16 << 20}
GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0


def alone(model: str, device: str, rank: int) -> Any:
    """What one rank gives with host memory of its own."""
    shape = DecodeShape.of_plan(hisparse_svc.plan(model, **SETTINGS), hisparse_svc.load_model(model))
    session = DecodeSession(shape, HostCopy.allocate(shape, pinned=device != "cpu"), device)
    plain = rank_worker.queries_of(session, rank)
    plain.running = session.join(pages=range(6))
    rank_worker.prefill(session, plain)
    return torch.stack([rank_worker.one_step(session, plain) for _ in range(rank_worker.STEPS)]).float().numpy()


def told(pipe: Connection) -> Any:
    """What a rank says next; one that died closes its end of the pipe."""
    assert pipe.poll(120), "a rank says nothing"
    return pipe.recv()


def pool_bytes(process: int) -> int:
    """A process's share of the pool that it has in common with others; CUDA shares memory of its own beside it."""
    found, of_pool = 0, False
    for line in Path(f"/proc/{process}/smaps").read_text(encoding="utf-8").splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            of_pool = "memfd:hisparse" in line
        elif name == "Pss:" and of_pool:
            found += int(rest[0]) << 10
    return found


@pytest.mark.parametrize(
    "devices",
    [
        pytest.param(["cpu", "cpu"], id="cpu"),
        pytest.param(["cuda:0", "cuda:0"], id="one GPU", marks=pytest.mark.gpu),
        pytest.param(
            ["cuda:0", "cuda:1"],
            id="two GPUs",
            marks=[pytest.mark.gpu, pytest.mark.skipif(GPUS < 2, reason="fewer than two CUDA devices")],
        ),
    ],
)
def test_two_ranks_over_one_host_copy_do_what_one_does(tiny_model: str, tmp_path: Path, devices: list[str]) -> None:
    flags = ["--model", tiny_model, "--kv-dtype", "fp8_e4m3", "--hot-rows", "64", "--kv-bytes", "3MiB"]
    served = start(tmp_path / "node.sock", *flags, "--host-pool", "16MiB", "--backing", "memory", "--http", "off")
    context = multiprocessing.get_context("spawn")
    pipes: list[Connection] = []
    ranks = []
    for rank in range(2):
        here, there = context.Pipe()
        arguments = (there, served.target, tiny_model, SETTINGS)
        own = {"rank": rank, "devices": devices}
        ranks.append(context.Process(target=rank_worker.run, args=arguments, kwargs=own, daemon=True))
        pipes.append(here)
        ranks[-1].start()
        there.close()
    pipes[1].send(told(pipes[0]))  # the writer's events
    client = served.client()
    lease = client.admit(prompt_tokens=rank_worker.PROMPT, max_new_tokens=180)
    for pipe in pipes:
        pipe.send(getattr(lease, "lease", lease))
    ticket, _ = (told(pipe) for pipe in pipes)
    for _ in range(rank_worker.STEPS):
        for pipe in pipes:
            pipe.send(ticket)
        ticket, _ = (told(pipe) for pipe in pipes)
    for pipe in pipes:
        pipe.send(None)
    plan = hisparse_svc.plan(tiny_model, **SETTINGS)
    found = []
    for pipe in pipes:
        outputs, device_bytes = told(pipe)
        assert device_bytes == {name: getattr(plan.device_bytes, name) for name in device_bytes}
        found.append(outputs)
    held = sum(pool_bytes(process) for process in (served.process.pid, *(int(rank.pid or 0) for rank in ranks)))
    assert 0 < held <= plan.host_bytes + (1 << 20), f"{held} bytes shared, a pool of {plan.host_bytes}"
    for pipe in reversed(pipes):
        pipe.send(None)
        assert told(pipe) is None
    for rank in ranks:
        rank.join(30)
        assert rank.exitcode == 0
    assert client.get_capacity().pool("seats").free == plan.seats
    assert served.end() == 0
    for stream in (served.process.stdout, served.process.stderr):
        assert stream is not None
        stream.close()
    for rank, outputs in enumerate(found):
        assert (outputs == alone(tiny_model, devices[rank], rank)).all(), f"rank {rank}"
