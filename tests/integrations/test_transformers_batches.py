"""Requests that join, leave, are cancelled in the middle of a step and refused, over a node's leases: plain tokens."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hisparse_svc import HiSparseError
from hisparse_svc.engine import Overlap
from hisparse_svc.integrations.transformers import ContinuousBatch, Generation, HostKv, cache_argument

from tests.integrations import models

NEW_TOKENS = 10
"""Tokens of the longest request; the shorter ones take the first of them."""

FACTORS: dict[str, tuple[Any, ...]] = {
    "family": models.FAMILIES,
    "hot_rows": (128, 192, 256),
    "prompt": (10, 130, 330, 400),
    "batch": (1, 2, 4, 8),
    "event": ("none", "staggered", "cancelled mid-step", "refused"),
    "prefill_tokens": (0, 100),
    "overlap": tuple(Overlap),
}


def pairs(case: tuple[Any, ...]) -> set[tuple[int, Any, int, Any]]:
    """Every two settings that a case tries together."""
    return {(a, case[a], b, case[b]) for a, b in itertools.combinations(range(len(case)), 2)}


def covering() -> list[tuple[Any, ...]]:
    """Cases that try every two settings together: each time the one that tries most pairs that none has."""
    everything = list(itertools.product(*FACTORS.values()))
    left = set().union(*map(pairs, everything))
    chosen = []
    while left:
        best = max(everything, key=lambda case: len(pairs(case) & left))
        chosen.append(best)
        left -= pairs(best)
    return chosen


CASES = covering()


@dataclass
class Interrupted(Exception):
    """What a model raises in the middle of a step."""


def interrupt_once(model: Any, layer: int) -> None:
    """Let the next pass through a layer fail, behind its attention."""

    def hook(*_: Any) -> None:
        handle.remove()
        raise Interrupted

    handle = model.model.layers[layer].mlp.register_forward_hook(hook)


def expected(family: str, generation: Generation) -> list[int]:
    whole = models.plain_tokens(family, generation.prompt, NEW_TOKENS)
    return whole[: generation.max_new_tokens]


@pytest.mark.parametrize("case", CASES, ids=["-".join(map(str, case)) for case in CASES])
def test_batches_give_the_tokens_of_plain_transformers(case: tuple[Any, ...]) -> None:
    family, hot_rows, prompt, batch, event, prefill_tokens, overlap = case
    model = models.make(family)
    settings = {"hot_rows": hot_rows, "kv_bytes": "48MiB", "host_pool": "96MiB"}
    with HostKv.embedded(model, **settings) as kv:
        kv.session.overlap = overlap
        driver = ContinuousBatch(kv, prefill_tokens=prefill_tokens)
        requests = [(models.prompt(prompt + 3 * (n % 3), n % 3), NEW_TOKENS - n % 4) for n in range(batch)]
        if event == "staggered":
            generations = staggered(driver, requests)
        elif event == "cancelled mid-step":
            generations = cancelled(driver, model, requests)
        elif event == "refused":
            generations = refused(driver, kv, requests)
        else:
            generations = [driver.submit(*request) for request in requests]
            driver.run()
        for generation in generations:
            assert generation.tokens == expected(family, generation), f"prompt of {len(generation.prompt)}"
        if prompt > hot_rows + 64:
            assert kv.swapped_rows > 0, "no rows were missing: nothing was tried"
        for name in ("seats", "host_pages"):
            pool = kv.client.get_capacity().pool(name)
            assert pool.free + pool.scrubbing + pool.evictable == pool.total, name


def staggered(driver: ContinuousBatch, requests: list[Any]) -> list[Generation]:
    """One more request every other step: some leave before others come."""
    generations = []
    for request in requests:
        generations.append(driver.submit(*request))
        driver.step()
        driver.step()
    driver.run()
    return generations


def cancelled(driver: ContinuousBatch, model: Any, requests: list[Any]) -> list[Generation]:
    """A request more, that is cancelled where a step failed between two layers; the others take the step again."""
    victim = driver.submit(models.prompt(200, 9), 10)
    generations = [driver.submit(*request) for request in requests]
    for _ in range(3):
        driver.step()
    before = [len(one.tokens) for one in generations]
    interrupt_once(model, 1)
    with pytest.raises(Interrupted):
        driver.step()
    assert [len(one.tokens) for one in generations] == before, "a step that failed took somebody further"
    driver.cancel(victim)
    assert victim.cancelled
    wanted = models.plain_tokens(model.config.model_type, victim.prompt, 3)
    assert victim.tokens == wanted[: len(victim.tokens)] != []
    interrupt_once(model, 0)
    with pytest.raises(Interrupted):
        driver.step()
    driver.run()
    return generations


def refused(driver: ContinuousBatch, kv: HostKv, requests: list[Any]) -> list[Generation]:
    """All pages are somebody else's but for one request's; what is refused is asked for again, and gets its turn."""
    free = kv.client.get_capacity().pool("host_pages").free
    needed = max(-(-(len(given) + new) // 64) for given, new in requests)
    generations = [driver.submit(*request) for request in requests]
    with kv.client.admit(pages=free), pytest.raises(HiSparseError):
        driver.step()
    with kv.client.admit(pages=free - needed):
        for _ in range(4):
            driver.step()
        assert len(driver.running) == 1
    driver.run()
    assert generations[0].refusals == 1
    assert all(one.refusals >= 4 for one in generations[1:2])
    return generations


def test_the_cases_try_every_two_settings_together() -> None:
    wanted = sum(len(a) * len(b) for a, b in itertools.combinations(FACTORS.values(), 2))
    assert len(set().union(*map(pairs, CASES))) == wanted
    assert len(CASES) <= 30


def test_another_session_goes_on_where_rows_are_durable() -> None:
    family = "glm_moe_dsa"
    model = models.make(family)
    given, new = models.prompt(230, 0), 60
    with HostKv.embedded(model, hot_rows=128, kv_bytes="48MiB", host_pool="96MiB") as kv:
        driver = ContinuousBatch(kv)
        one = driver.submit(given, new)
        for _ in range(40):
            driver.step()
        kv.session.settle(wait=True)
        (running,) = driver.running.values()
        durable, length = running.durable_tokens, running.length
        assert 256 == durable < length
        for group, keys in enumerate(kv.session.memory.keys):  # its device is lost: nothing but host memory is left
            keys.pages.fill_(255)
            for rows in kv.session.memory.cache.rows[group]:
                rows.fill_(255)
        kv.session.leave = lambda _: None  # type: ignore[method-assign] # its process would be gone
        second = HostKv(model, _session_like(kv), kv.client)
        after = ContinuousBatch(second)
        assert running.lease is not None
        after.resume(Generation(given, new, tokens=list(one.tokens), lease=running.lease, durable_tokens=durable))
        resumed = after.waiting[0]
        after.run()
        assert resumed.tokens == models.plain_tokens(family, given, new)
        assert resumed.tokens[: len(one.tokens)] == one.tokens


def _session_like(kv: HostKv) -> Any:
    """A new session over the same host memory."""
    from hisparse_svc.engine import DecodeSession  # noqa: PLC0415

    return DecodeSession(kv.session.shape, kv.session.memory.host, "cpu", leases=kv.client)


@pytest.mark.parametrize("family", models.FAMILIES)
def test_logits_of_a_step_are_those_of_plain_transformers(family: str) -> None:
    given = models.prompt(330, 1)
    plain, model = models.plain_model(family), models.make(family)
    with HostKv.embedded(model, hot_rows=128, kv_bytes="48MiB", host_pool="96MiB") as kv:
        options = {"max_new_tokens": 8, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
        ids = torch.tensor([given])
        ours = model.generate(ids, **cache_argument(model, kv.request(len(given), 8)), **options).logits
        theirs = plain.generate(ids, **options).logits
    assert torch.equal(ours[0], theirs[0]), "prefill is transformers' own"
    for step, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-3), f"step {step}: {(a - b).abs().max()}"
