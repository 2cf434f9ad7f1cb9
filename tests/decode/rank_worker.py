"""One rank in a process of its own: does what it is told over a pipe, and sends back what attention gave."""

from __future__ import annotations

import faulthandler
import os
import signal
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import hisparse_svc
import torch
from hisparse_svc.engine import DecodeSession, DecodeShape, HostCopy, HostPool, ReaderFence, WriterFence

from tests.decode.plain import PlainRequest, PlainStep

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from pathlib import Path

TOKENS, PROMPT, STEPS = 330, 150, 150


def queries_of(session: DecodeSession, rank: int) -> PlainRequest:
    """The same rows and keys on every rank, queries of each rank's own."""
    plain, own = PlainRequest.make(session, TOKENS, 7), PlainRequest.make(session, TOKENS, 100 + rank)
    plain.queries = own.queries
    return plain


def prefill(session: DecodeSession, plain: PlainRequest) -> None:
    """Bring the prompt in."""
    assert plain.running is not None
    device = session.memory.cache.device
    for layer in range(session.shape.layers):
        group, place = session.shape.place(layer)
        keys = plain.keys[group, :PROMPT].to(device) if place == 0 else None
        session.prefill(plain.running, layer, plain.rows[layer, :PROMPT].to(device), keys=keys)
    session.prefilled(plain.running, PROMPT)


def one_step(session: DecodeSession, plain: PlainRequest) -> torch.Tensor:
    """Give the outputs of all layers; what attention was given is compared with the plain rows."""
    assert plain.running is not None
    body = PlainStep(session, [plain], 1)
    with session.step([plain.running]) as step:
        body(step)
    return torch.stack(body.outputs)


def write_down(said: Path) -> None:
    """Send everything that this process says to a file, a signal that ends it and native code's last words included."""
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 2)
    faulthandler.enable(descriptor)
    faulthandler.register(signal.SIGUSR1, descriptor)  # where it hangs, if it is asked


@contextmanager
def telling_at_once() -> Iterator[None]:
    """Say what went wrong before anything is cleaned up, which may not come to its end after a CUDA error."""
    try:
        yield
    except BaseException:
        traceback.print_exc()
        raise


def run(
    pipe: Connection,
    target: str,
    model: str,
    settings: dict[str, Any],
    *,
    rank: int,
    devices: list[str],
    said: Path,
) -> None:
    """Attach as rank `rank`, join the lease that is sent, and take a step for every ticket that is sent."""
    write_down(said)
    torch.set_num_threads(1)
    device, writer = devices[rank], rank == 0
    if device != "cpu":
        torch.cuda.set_device(device)
    plan = hisparse_svc.plan(model, **settings)
    shape = DecodeShape.of_plan(plan, hisparse_svc.load_model(model))
    with HostPool.attach(target, role="writer" if writer else "reader", rank=rank) as pool, telling_at_once():
        if device != "cpu":
            pool.register(device=int(device.split(":")[1]))
        session = DecodeSession(shape, HostCopy.of_pool(pool), device, leases=pool.client if writer else None)
        plain = queries_of(session, rank)
        fence: WriterFence | None = None
        if writer:
            fence = WriterFence(device)
            pipe.send(fence.handles)
        else:
            reader = ReaderFence(pipe.recv(), devices[0])
        plain.running = session.join(pipe.recv())
        prefill(session, plain)
        pipe.send(fence.record() if fence else None)
        found = []
        while (ticket := pipe.recv()) is not None:
            if fence is None:
                reader.wait(ticket)
            found.append(one_step(session, plain))
            pipe.send(fence.record() if fence else None)
        pipe.send((torch.stack(found).float().numpy(), session.memory.device_bytes))
        pipe.recv()  # the readers leave first
        session.leave(plain.running)
        pipe.send(None)
