"""An engine killed in the middle of decoding, and a service killed under a decoding engine: plain transformers' tokens.

The service's pool is in fp32, index keys too, so that nothing is rounded on the way to a successor.
"""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING, Any

import pytest
from hisparse_svc.engine import HostPool
from hisparse_svc.integrations.transformers import config_json

from tests.integrations import engine_worker, models
from tests.serve.conftest import Served, start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

REQUESTS = [(models.prompt(250, 0), 24), (models.prompt(90, 1), 32)]


def plain(family: str) -> list[list[int]]:
    """Tokens of the requests in plain transformers."""
    return [models.plain_tokens(family, prompt, new) for prompt, new in REQUESTS]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[str], Served]]:
    """Starts services of a family's model, all at one socket, and ends those that still run."""
    started: list[Served] = []

    def one(family: str) -> Served:
        config = tmp_path / "config.json"
        config.write_text(config_json(models.make(family)), encoding="utf-8")
        flags = ["--model", str(config), *engine_worker.FLAGS, "--backing", "memory", "--http", "off"]
        started.append(start(tmp_path / "node.sock", *flags))
        return started[-1]

    yield one
    for served in started:
        if served.process.poll() is None:
            served.end()
        for pipe in (served.process.stdout, served.process.stderr):
            assert pipe is not None
            pipe.close()


def engine(served: Served, family: str) -> tuple[Any, Any, bytes]:
    """Start an engine in a process: the process, a pipe to it, and its session's token."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    config = str(served.socket.parent / "config.json")
    process = context.Process(target=engine_worker.run, args=(there, served.target, family, config), daemon=True)
    process.start()
    there.close()
    return process, here, told(here)


def told(pipe: Any) -> Any:
    """What an engine says next; one that died closes its end of the pipe."""
    assert pipe.poll(120), "the engine says nothing"
    return pipe.recv()


def test_a_killed_engines_successor_gives_the_same_tokens(begin: Callable[[str], Served]) -> None:
    family = "glm_moe_dsa"
    served = begin(family)
    process, pipe, token = engine(served, family)
    pipe.send((b"", [(prompt, new, [], "") for prompt, new in REQUESTS]))
    assert told(pipe) == [0, 0]
    for _ in range(12):
        state = told(pipe)
    process.kill()
    process.join(20)
    assert all(0 < len(tokens) < new for (tokens, _), (_, new) in zip(state, REQUESTS, strict=True))
    process, pipe, _ = engine(served, family)
    pipe.send((token, [(*request, *had) for request, had in zip(REQUESTS, state, strict=True)]))
    assert told(pipe) == [256, 64], "what whole pages had made durable"
    while (now := told(pipe)) is not None:
        state = now
    process.join(20)
    assert process.exitcode == 0
    assert [tokens for tokens, _ in state] == plain(family)
    seats = served.client().get_capacity().pool("seats")
    assert seats.free == seats.total


def test_decoding_goes_on_while_the_service_is_killed_and_replaced(begin: Callable[[str], Served]) -> None:
    family = "deepseek_v32"
    first = begin(family)
    with HostPool.attach(first.target) as pool:
        driver = engine_worker.driver_over(pool, family, str(first.socket.parent / "config.json"))
        generations = [driver.submit(*request) for request in REQUESTS]
        for _ in range(10):
            driver.step()
        first.process.kill()
        first.process.wait(timeout=20)
        for number in range(11, 28):  # the first request ends meanwhile
            driver.step()
            assert len(generations[1].tokens) == number
        assert generations[0].done
        second = begin(family)
        notice = pool.next_notice(60)
        assert notice is not None
        assert notice[0] == "resumed"
        driver.run()
        assert [one.tokens for one in generations] == plain(family)
        seats = second.client().get_capacity().pool("seats")
        assert seats.free == seats.total, "what ended while nobody listened was released all the same"
