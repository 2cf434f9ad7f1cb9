"""Continuous batching, small: requests wait, join, decode together and leave, between one step and the next.

::

    submit ──► waiting ── admit, join ──► running ── step, step … ──► done
                  ▲          │ refused        │ cancel: out at once, its lease released
                  └──────────┘                └─ step fails: nobody is further, step again

Each step feeds every request the token behind those that it has, and samples where that was its last: a request that
comes back from a crash is fed the tokens it had produced, from where its rows are durable, one by one as before.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from hisparse_svc.errors import HiSparseError
from hisparse_svc.integrations.transformers.cache import HostCache
from hisparse_svc.integrations.transformers.hooks import cache_argument, mask_argument
from hisparse_svc.kernels import PAGE_ROWS
from hisparse_svc.rpc.refusals import StaleEpoch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from hisparse_svc.engine import HostPool, Running
    from hisparse_svc.integrations.transformers.kv import HostKv
    from hisparse_svc.rpc.values import Lease

__all__ = ["ContinuousBatch", "Generation"]


@dataclass(eq=False)
class Generation:
    """A request and what became of it.

    Attributes:
        prompt: Tokens given.
        max_new_tokens: Most tokens to produce.
        tokens: Tokens produced.
        lease: What reserves its pages, where somebody else admitted it.
        durable_tokens: Tokens whose rows are in host memory already; with the lease of a dead engine.
        cancelled: Whether it was.
        refusals: How often the service refused it so far.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    tokens: list[int] = field(default_factory=list)
    lease: Lease | None = None
    durable_tokens: int = 0
    cancelled: bool = False
    refusals: int = 0

    @property
    def done(self) -> bool:
        """Whether all its tokens are produced."""
        return len(self.tokens) >= self.max_new_tokens

    @property
    def known(self) -> int:
        """How many tokens there are: the prompt's and those produced."""
        return len(self.prompt) + len(self.tokens)

    def between(self, first: int, last: int) -> tuple[int, ...]:
        """Give tokens from `first` to before `last`, of the prompt and of those produced."""
        behind = len(self.prompt)
        return (*self.prompt[first:last], *self.tokens[max(first - behind, 0) : max(last - behind, 0)])


class ContinuousBatch:
    """Requests of one `HostKv`, decoded greedily.

    Attributes:
        waiting: Requests without a seat.
        running: Requests that decode, each with its place in the session.
    """

    def __init__(
        self, kv: HostKv, *, prefill_tokens: int = 0, batch: int = 0, publish_to: HostPool | None = None
    ) -> None:
        """Start empty.

        Args:
            kv: What to decode through.
            prefill_tokens: Longest piece of a prompt to prefill at once; 0: all of it.
            batch: Most requests that decode in one pass through the model; 0: all of them.
            publish_to: Where to say which pages are durable, so that a successor may resume from them.
        """
        self.waiting: deque[Generation] = deque()
        self.running: dict[Generation, Running] = {}
        self._kv = kv
        self._prefill_tokens = prefill_tokens
        self._batch = batch
        self._publish_to = publish_to
        self._published: dict[Generation, int] = {}
        self._owed: list[str] = []

    def submit(self, prompt: Sequence[int], max_new_tokens: int, *, lease: Lease | None = None) -> Generation:
        """Queue a request.

        Args:
            prompt: Its tokens, at least one.
            max_new_tokens: Most tokens to produce.
            lease: What a router reserved for it; admitted here where not given.
        """
        self.waiting.append(Generation(tuple(prompt), max_new_tokens, lease=lease))
        return self.waiting[-1]

    def resume(self, generation: Generation) -> None:
        """Queue a request that another engine had begun, with its lease, tokens and durable length."""
        self.waiting.append(generation)

    def cancel(self, generation: Generation) -> None:
        """Take a request out, wherever it is; what it has produced stays."""
        generation.cancelled = True
        if generation in self.running:
            self._leave(generation)
        elif generation in self.waiting:
            self.waiting.remove(generation)
            if generation.lease is not None:
                self._kv.client.release(generation.lease.id)

    def step(self) -> None:
        """Let waiting requests join, prefill those that did, and decode one token of every other.

        A service that cannot be reached stops nobody who runs: what is to be told it is told later.

        Raises:
            HiSparseError: Nothing runs, and the service refuses what waits.
        """
        self._release_owed()
        self.join()
        fresh = [one for one in self.running if self._to_prefill(one) > 1]
        others = [one for one in self.running if one not in fresh]
        for generation in fresh:
            self._forward([generation], self._to_prefill(generation))
        batch = self._batch or len(others) or 1
        for first in range(0, len(others), batch):
            self._forward(others[first : first + batch], 1)
        for generation in [one for one in self.running if one.done]:
            self._leave(generation)
        self._publish()

    def join(self) -> None:
        """Let requests that wait join while there are seats; `step` does so by itself.

        Raises:
            HiSparseError: Nothing runs, and the service refuses what waits.
        """
        while self.waiting and self._kv.session.free_seats:
            generation = self.waiting[0]
            try:
                if generation.lease is None:
                    prompt_tokens, new = len(generation.prompt), generation.max_new_tokens
                    generation.lease = self._kv.client.admit(prompt_tokens, new).lease
                running = self._kv.session.join(generation.lease, length=generation.durable_tokens)
            except HiSparseError:
                generation.refusals += 1
                if not self.running:
                    raise
                return  # whoever leaves makes room
            self.running[self.waiting.popleft()] = running

    def run(self) -> None:
        """Step until everybody is done."""
        while self.waiting or self.running:
            self.step()
        self._release_owed()

    # --- inside ---

    def _leave(self, generation: Generation) -> None:
        self._published.pop(generation, None)
        running = self.running.pop(generation)
        try:
            self._kv.session.leave(running)
        except HiSparseError:
            if running.lease is not None:
                self._owed.append(running.lease.id)

    def _release_owed(self) -> None:
        while self._owed:
            try:
                self._kv.client.release(self._owed[-1])
            except HiSparseError:
                return
            self._owed.pop()

    def _to_prefill(self, generation: Generation) -> int:
        """Tokens of its prompt to bring in at once; what was produced is always fed one by one."""
        left = len(generation.prompt) - self.running[generation].length
        return min(left, self._prefill_tokens or left)

    @torch.no_grad()
    def _forward(self, generations: list[Generation], tokens: int) -> None:
        model = self._kv.model
        requests = [self.running[one] for one in generations]
        starts = [request.length for request in requests]
        fed = [one.between(start, start + tokens) for one, start in zip(generations, starts, strict=True)]
        positions = torch.tensor([[*range(start, start + tokens)] for start in starts], device=model.device)
        cache = HostCache(self._kv, requests)
        try:
            logits: Tensor = model(
                input_ids=torch.tensor(fed, device=model.device),
                position_ids=positions,
                **mask_argument(model, _mask(positions)),
                **cache_argument(model, cache),
                use_cache=True,
                logits_to_keep=1,
            ).logits
        except BaseException:
            cache.abandon()
            raise
        chosen = logits[:, -1].float().argmax(-1).tolist()
        for generation, start, token in zip(generations, starts, chosen, strict=True):
            if start + tokens == generation.known:
                generation.tokens.append(token)

    def _publish(self) -> None:
        if self._publish_to is None:
            return
        self._kv.session.settle()
        for generation, running in self.running.items():
            first, last = self._published.get(generation, 0), running.durable_tokens // PAGE_ROWS
            if running.lease is None or last <= first:
                continue
            hashes = page_hashes(generation.between(0, last * PAGE_ROWS), last)
            with contextlib.suppress(HiSparseError):  # the next step tries again
                try:
                    self._publish_to.publish(running.lease, hashes[first:last], first_page=first)
                    self._published[generation] = last
                except StaleEpoch:  # another service by now
                    running.lease = self._kv.client.get_lease(running.lease.id)


def page_hashes(tokens: Sequence[int], pages: int) -> list[bytes]:
    """Name the content of leading pages: each hash covers the tokens of its page and of all before it."""
    hashes, chain = [], hashlib.sha256(b"hisparse_svc.integrations.transformers")
    for page in range(pages):
        held = tokens[page * PAGE_ROWS : (page + 1) * PAGE_ROWS]
        chain.update(b"".join(token.to_bytes(4, "little") for token in held))
        hashes.append(chain.digest())
    return hashes


def _mask(positions: Tensor) -> Tensor:
    """Which tokens each query sees, `bool [batch, 1, query, token]`: those up to its own, in a batch padded behind."""
    tokens = torch.arange(int(positions.max()) + 1, device=positions.device)
    return (tokens <= positions.unsqueeze(-1)).unsqueeze(1)
