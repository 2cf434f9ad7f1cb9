"""Thousands of steps of requests that come and go, over a real node's leases, against a plain model."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import hisparse_svc
import pytest
from hisparse_svc import HiSparseError
from hisparse_svc.engine import DecodeSession, DecodeShape, HostCopy, HostPool, Overlap

from tests.decode.plain import PlainRequest, PlainStep, compare_host

if TYPE_CHECKING:
    from collections import Counter as Tally

STEPS = int(os.environ.get("HISPARSE_DECODE_STEPS", "300"))
SEED = int(os.environ.get("HISPARSE_DECODE_SEED", "1"))


class Churn:
    """Requests that come and go at random."""

    def __init__(self, pool: HostPool, session: DecodeSession, seed: int) -> None:
        from collections import Counter  # noqa: PLC0415

        self.pool, self.session = pool, session
        self.random = random.Random(seed)  # noqa: S311 - chance, not secrets
        self.running: list[PlainRequest] = []
        self.parked: list[PlainRequest] = []
        self.seen: Tally[str] = Counter()

    def change(self) -> None:
        """Let somebody come, go, or make room."""
        act = self.random.choice(["admit", "admit", "admit", "cancel", "retract", "resume", "resume"])
        if act == "admit":
            self.admit()
        elif act == "cancel" and self.running and self.random.random() < 0.3:
            self.seen["cancelled"] += 1
            self.leave(self.random.choice(self.running))
        elif act == "retract" and self.running and not self.parked:
            plain = self.random.choice(self.running)
            assert plain.running is not None
            self.session.retract(plain.running)
            compare_host(self.session, plain)
            self.running.remove(plain)
            self.parked.append(plain)
            self.seen["retracted"] += 1
        elif act == "resume" and self.parked and self.session.free_seats:
            plain = self.parked.pop()
            assert plain.running is not None
            self.session.resume(plain.running)
            self.running.append(plain)
            self.seen["resumed"] += 1

    def admit(self) -> None:
        prompt = self.random.choice([0, 1, 63, 64, 65, self.random.randint(2, 300)])
        new = self.random.randint(1, 120)
        try:
            lease = self.pool.client.admit(prompt_tokens=prompt, max_new_tokens=new)
        except HiSparseError:
            self.seen["refused"] += 1
            return
        lease = getattr(lease, "lease", lease)
        if not self.session.free_seats or self.random.random() < 0.1:
            self.seen["cancelled before it ran"] += 1
            self.pool.client.release(lease.id)
            return
        plain = PlainRequest.make(self.session, prompt + new, self.random.getrandbits(32))
        plain.running = self.session.join(lease)
        if prompt:
            self.prefill(plain, prompt)
        self.running.append(plain)
        self.seen["joined"] += 1

    def prefill(self, plain: PlainRequest, prompt: int) -> None:
        device = self.session.memory.cache.device
        assert plain.running is not None
        chunk = self.random.choice([prompt, 64, 100])
        for first in range(0, prompt, chunk):
            end = min(prompt, first + chunk)
            for layer in range(self.session.shape.layers):
                group, place = self.session.shape.place(layer)
                keys = plain.keys[group, first:end].to(device) if place == 0 else None
                rows = plain.rows[layer, first:end].to(device)
                self.session.prefill(plain.running, layer, rows, keys=keys, first=first)
        self.session.prefilled(plain.running, prompt)

    def leave(self, plain: PlainRequest) -> None:
        assert plain.running is not None
        self.session.leave(plain.running)
        self.running.remove(plain)

    def step(self, *, exact: bool) -> None:
        some = self.random.sample(self.running, self.random.randint(1, len(self.running)))
        batch = self.random.randint(len(some), self.session.shape.geometry.seats)
        body = PlainStep(self.session, some, batch, exact_attention=exact)
        with self.session.step([plain.running for plain in some], batch=batch) as step:  # type: ignore[misc]
            body(step)
        self.seen["stepped"] += 1
        for plain in some:
            assert plain.running is not None
            assert plain.running.lease is not None
            if plain.running.length == plain.running.lease.tokens:
                self.session.settle(wait=True)
                self.seen["finished"] += 1
                self.leave(plain)


@pytest.mark.parametrize(("kv_dtype", "kv_bytes"), [("bfloat16", "3MiB"), ("fp8_e4m3", "1900KiB")])
def test_every_row_that_attention_reads_is_the_right_one(
    tiny_model: str, device: str, kv_dtype: str, kv_bytes: str
) -> None:
    settings = {"model": tiny_model, "kv_dtype": kv_dtype, "host_pool": "16MiB", "hot_rows": 64, "kv_bytes": kv_bytes}
    with HostPool.embedded(**settings) as pool:
        if device != "cpu":
            pool.register()
        assert pool.node is not None
        shape = DecodeShape.of_plan(pool.node.plan, hisparse_svc.load_model(tiny_model))
        session = DecodeSession(shape, HostCopy.of_pool(pool), device, leases=pool.client, overlap=Overlap.PREFETCH)
        churn = Churn(pool, session, SEED)
        while churn.seen["stepped"] < STEPS:
            churn.change()
            if churn.running:
                churn.step(exact=churn.seen["stepped"] % 50 == 0)
        for plain in [*churn.running, *churn.parked]:
            assert plain.running is not None
            session.leave(plain.running)
        capacity = pool.client.get_capacity()
        pages = capacity.pool("host_pages")
        assert pages.free + pages.scrubbing + pages.evictable == pages.total
        expected = {"joined", "finished", "retracted", "resumed", "refused", "cancelled", "cancelled before it ran"}
        assert expected <= set(churn.seen), churn.seen
