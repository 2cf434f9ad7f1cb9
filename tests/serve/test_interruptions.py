"""What is told to stop says so in one line, with the shells' exit code, and holds nothing after it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import hisparse_svc.client
import pytest
from hisparse_svc import Client, Request, aio

from tests.conftest import environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hisparse_svc.client import HeldLease

    from tests.serve.conftest import Served

    Begin = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def begin() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts commands against a server, and ends those that still run."""
    begun: list[subprocess.Popen[str]] = []

    def start(node: Served, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "hisparse_svc", *arguments, "--target", node.target],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        begun.append(process)
        return process

    yield start
    for process in begun:
        if process.poll() is None:
            process.kill()
            process.wait(timeout=10)
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def full(serve: Callable[..., Served]) -> Iterator[tuple[Served, HeldLease]]:
    """A server that says who waits, and the lease that all its room is in."""
    served = serve("--http", "127.0.0.1:0")
    with served.client().admit(pages=300, ttl_s=60) as held:
        yield served, held


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end, "it did not come about in 20 s"
        time.sleep(0.02)


@pytest.fixture
def slow_trace(tmp_path: Path) -> Path:
    """Twenty requests at once, of which four are granted and run for minutes."""
    trace = tmp_path / "trace.jsonl"
    line = {"timestamp": 0, "input_length": 640, "output_length": 100}
    last = {"timestamp": 9_000_000, "input_length": 640, "output_length": 100}
    trace.write_text("".join(json.dumps(entry) + "\n" for entry in [*[line] * 20, last]), encoding="utf-8")
    return trace


def test_ctrl_c_ends_a_watch_with_130_and_one_line(node: Served, begin: Begin) -> None:
    process = begin(node, "watch", "--json")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=20)
    assert (process.returncode, told) == (130, "error: interrupted\n")


def test_a_watch_whose_reader_has_gone_ends_without_a_word(node: Served, begin: Begin) -> None:
    process = begin(node, "watch", "--json")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    client = node.client()

    def changed() -> bool:
        client.admit(64).release()
        return process.poll() is not None

    until(changed)
    assert process.stderr is not None
    with process.stderr:
        assert (process.wait(timeout=20), process.stderr.read()) == (141, "")


def test_ctrl_c_takes_a_waiting_request_out_of_the_line(full: tuple[Served, HeldLease], begin: Begin) -> None:
    node, first = full
    process = begin(node, "admit", "--pages", "100", "--wait", "60")
    until(lambda: node.waiters() == 1)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=20)
    assert (process.returncode, told) == (130, "error: interrupted\n")
    until(lambda: node.waiters() == 0)
    first.release()
    assert node.client().list_leases() == []


@pytest.mark.parametrize(
    ("number", "told_first"), [(signal.SIGINT, "error: interrupted"), (signal.SIGTERM, "error: told to stop")]
)
def test_a_replay_told_to_stop_gives_its_leases_back_first(
    node: Served, begin: Begin, slow_trace: Path, number: signal.Signals, told_first: str
) -> None:
    client = node.client()
    process = begin(node, "replay", str(slow_trace), "--speed", "0.05")
    until(lambda: len(client.list_leases()) == 4)
    process.send_signal(number)
    _, told = process.communicate(timeout=20)
    assert (process.returncode, told) == (128 + number, f"{told_first}; its leases were given back\n")
    assert client.list_leases() == []


def test_a_replay_whose_service_is_gone_does_not_claim_to_have_given_back(
    node: Served, begin: Begin, slow_trace: Path
) -> None:
    client = node.client()
    process = begin(node, "replay", str(slow_trace), "--speed", "0.05")
    until(lambda: len(client.list_leases()) == 4)
    node.process.kill()
    node.process.wait(timeout=10)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=40)
    assert process.returncode == 130, told
    assert "could not be given back" in told


def test_an_interrupted_wait_of_the_blocking_client_holds_nothing(full: tuple[Served, HeldLease]) -> None:
    node, first = full

    def interrupt() -> None:
        until(lambda: node.waiters() == 1)
        signal.raise_signal(signal.SIGINT)

    client, interrupting = node.client(), threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        client.admit(pages=100, wait_s=30)
    interrupting.join()
    until(lambda: node.waiters() == 0)
    first.release()
    assert client.list_leases() == []


def test_an_interruption_just_as_a_wait_was_sent_holds_nothing(
    full: tuple[Served, HeldLease], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, first = full
    callable_of, sent = hisparse_svc.client.callable_of, list[Any]()

    class Interrupted:
        def __init__(self, method: Any) -> None:
            self.method = method

        def future(self, *arguments: Any, **more: Any) -> Any:
            sent.append(self.method.future(*arguments, **more))  # as gRPC keeps it, which nobody else has yet
            until(lambda: node.waiters() == 1)
            signal.raise_signal(signal.SIGINT)
            return sent[0]

    def late(kind: Any, call: Any) -> Any:
        method = callable_of(kind, call)
        return Interrupted(method) if call.wait_s else method

    monkeypatch.setattr(hisparse_svc.client, "callable_of", late)
    client = node.client()
    with pytest.raises(KeyboardInterrupt):
        client.admit(pages=100, wait_s=30)
    until(lambda: node.waiters() == 0)
    first.release()
    assert client.list_leases() == []


def test_an_interrupted_call_of_the_blocking_client_holds_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Too quick to hit: the answer is here, and the interruption comes before anybody has it.
    send = hisparse_svc.client._called

    def late(*arguments: Any) -> None:
        send(*arguments)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(hisparse_svc.client, "_called", late)
    with pytest.raises(KeyboardInterrupt):
        client.admit(pages=100)
    assert client.list_leases() == []


@pytest.mark.parametrize("after_s", [0.0, 0.0005, 0.001, 0.002, 0.005])
def test_a_cancelled_admit_holds_nothing(node: Served, after_s: float) -> None:
    async def drive() -> int:
        async with aio.Client(node.target) as client:
            await client.get_capacity()
            for _ in range(20):
                task = asyncio.create_task(client.admit(64))
                await asyncio.sleep(after_s)
                task.cancel()
                try:
                    held = await task
                except asyncio.CancelledError:
                    continue
                await held.release()
            return len(await client.list_leases())

    assert asyncio.run(drive()) == 0


def test_a_cancelled_wait_holds_nothing_when_room_is_made(full: tuple[Served, HeldLease]) -> None:
    node, first = full

    async def drive() -> int:
        async with aio.Client(node.target) as client:
            waits = asyncio.create_task(client.admit(pages=100, wait_s=30))
            await asyncio.to_thread(until, lambda: node.waiters() == 1)
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            await asyncio.to_thread(until, lambda: node.waiters() == 0)
            first.release()
            return len(await client.list_leases())

    assert asyncio.run(drive()) == 0


def test_a_cancelled_batch_holds_nothing(node: Served) -> None:
    async def drive() -> int:
        async with aio.Client(node.target) as client:
            task = asyncio.create_task(client.batch_admit([Request(pages=1)] * 3))
            until_sent = client.get_capacity()
            await until_sent
            task.cancel()
            try:
                granted = await task
            except asyncio.CancelledError:
                return len(await client.list_leases())
            return sum(decision.lease is None for decision in granted)

    assert asyncio.run(drive()) == 0


def test_admit_is_a_coroutine_for_every_tool_of_asyncio(node: Served) -> None:
    async def drive() -> None:
        async with aio.Client(node.target) as client:
            held = await asyncio.create_task(client.admit(64))
            await held.release()
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(client.admit(64))
            assert not (await task.result().release()).already_released

    asyncio.run(drive())
