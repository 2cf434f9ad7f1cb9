"""Two ranks in two processes over one host copy: the same results as one rank, and the host's bytes counted once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import hisparse_svc
import pytest
import torch
from hisparse_svc.bench.shared import pool_bytes
from hisparse_svc.engine import DecodeSession, DecodeShape, HostCopy

from tests.decode import rank_worker
from tests.serve.conftest import Served, start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess
    from pathlib import Path

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


@dataclass
class Rank:
    """A rank's process, and both ways of hearing from it."""

    process: SpawnProcess
    pipe: Connection
    said: Path

    @property
    def pid(self) -> int:
        """Its process."""
        return int(self.process.pid or 0)

    def send(self, what: object) -> None:
        """Tell it something."""
        self.pipe.send(what)

    def told(self, timeout_s: float = 120) -> Any:
        """What it says next; one that ended closes its end of the pipe, and a failure shows its last words."""
        if not self.pipe.poll(timeout_s):
            os.kill(self.pid, signal.SIGUSR1)  # it writes down where it is
            time.sleep(1)
            raise AssertionError(
                f"{self.process.name} says nothing for {timeout_s} s; it is here:\n{self._last_words()}"
            )
        try:
            return self.pipe.recv()
        except EOFError:
            self.process.join(30)
            code = self.process.exitcode
            how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
            raise AssertionError(f"{self.process.name} ended, {how}; its last words:\n{self._last_words()}") from None

    def _last_words(self) -> str:
        return self.said.read_text(encoding="utf-8", errors="replace")[-6000:] if self.said.exists() else "none"


@contextmanager
def rank_of(folder: Path, target: str, model: str, *, rank: int, devices: list[str]) -> Iterator[Rank]:
    """Start a rank, which does not outlive the block."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    said = folder / f"rank{rank}.stderr"
    own = {"rank": rank, "devices": devices, "said": said}
    process = context.Process(
        target=rank_worker.run, args=(there, target, model, SETTINGS), kwargs=own, daemon=True, name=f"rank {rank}"
    )
    process.start()
    there.close()
    try:
        yield Rank(process, here, said)
    finally:
        here.close()
        if process.is_alive():
            process.kill()
        process.join(30)


@contextmanager
def served_at(socket: Path, model: str) -> Iterator[Served]:
    """A service with the pool of `SETTINGS`."""
    flags = ["--model", model, "--kv-dtype", "fp8_e4m3", "--hot-rows", "64", "--kv-bytes", "3MiB"]
    served = start(socket, *flags, "--host-pool", "16MiB", "--backing", "memory", "--http", "off")
    try:
        yield served
    finally:
        if served.process.poll() is None:
            served.end()
        for stream in (served.process.stdout, served.process.stderr):
            assert stream is not None
            stream.close()


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
    with ExitStack() as stack:
        served = stack.enter_context(served_at(tmp_path / "node.sock", tiny_model))
        ranks = [
            stack.enter_context(rank_of(tmp_path, served.target, tiny_model, rank=rank, devices=devices))
            for rank in range(2)
        ]
        found = decode(served, ranks, tiny_model)
    for rank, outputs in enumerate(found):
        assert (outputs == alone(tiny_model, devices[rank], rank)).all(), f"rank {rank}"


def decode(served: Served, ranks: list[Rank], model: str) -> list[Any]:
    """Take all ranks through the same steps; give what attention gave each."""
    writer, reader = ranks
    reader.send(writer.told())  # the writer's events
    client = served.client()
    lease = client.admit(prompt_tokens=rank_worker.PROMPT, max_new_tokens=180)
    for rank in ranks:
        rank.send(getattr(lease, "lease", lease))
    ticket, _ = (rank.told() for rank in ranks)
    for _ in range(rank_worker.STEPS):
        for rank in ranks:
            rank.send(ticket)
        ticket, _ = (rank.told() for rank in ranks)
    for rank in ranks:
        rank.send(None)
    plan = hisparse_svc.plan(model, **SETTINGS)
    found = []
    for rank in ranks:
        outputs, device_bytes = rank.told()
        assert device_bytes == {name: getattr(plan.device_bytes, name) for name in device_bytes}
        found.append(outputs)
    held = sum(pool_bytes(process)[1] for process in (served.process.pid, *(rank.pid for rank in ranks)))
    assert 0 < held <= plan.host_bytes + (1 << 20), f"{held} bytes shared, a pool of {plan.host_bytes}"
    for rank in reversed(ranks):
        rank.send(None)
        assert rank.told() is None
    for rank in ranks:
        rank.process.join(30)
        assert rank.process.exitcode == 0
    assert client.get_capacity().pool("seats").free == plan.seats
    assert served.end() == 0
    return found
