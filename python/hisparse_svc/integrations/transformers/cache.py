"""The cache that a hooked model is given: one batch of requests, for one forward pass after another.

::

    layer      update(latent, rope)     update_indexer(key)           attend(q, picks)
    prefill    ──► host, in bulk        ──► index keys, in bulk        last layer: the request is longer
    decode     first layer: step begins ──► step, all keys come back   rows hot, attention; last layer: step ends

A pass that fails leaves a step open; the next one, or `abandon`, drops it: nobody is further, hot rows start cold.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kernels import PAGE_ROWS
from hisparse_svc.kernels.decode.rows import LATENT_WIDTH, ROW_FORMATS, pack_rows, unpack_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor

    from hisparse_svc.engine import DecodeSession, LayerStep, Running
    from hisparse_svc.kernels import IndexKeys

__all__ = ["HostCache", "HostLayer", "ModelKv"]

_REQUESTS_AT_ONCE = 8
"""Requests whose index keys are in fp32 at a time: 256 MiB where each has 64 K tokens."""


class ModelKv(Protocol):
    """What a cache asks of its model's KV; `HostKv` is one.

    Attributes:
        session: The session that decodes.
        on_attention: Called with layer, queries, new rows as stored and output of each decode step's attention.
        on_picks: Called with layer, requests and picks of each decode step and layer that has an indexer.
    """

    session: DecodeSession
    on_attention: Callable[[int, Tensor, Tensor, Tensor], None] | None
    on_picks: Callable[[int, Sequence[Running], Tensor], None] | None

    def read_rows(self, request: Running, layer: int, tokens: int) -> Tensor:
        """Read a request's first rows of one layer from host memory, as numbers, `f32 [token, 576]`."""

    def count_swaps(self, counts: Tensor, layers: int) -> None:
        """Add a step's missing rows, each of which was copied for so many layers."""


class _Abandoned(Exception):
    """What a step that is dropped ends with."""


@dataclass(frozen=True)
class _OpenStep:
    """A decode step under way."""

    scope: AbstractContextManager[LayerStep]
    step: LayerStep


class HostLayer(CacheLayerMixin):
    """One layer of a `HostCache`; everything is the cache's."""

    is_sliding = False
    supports_early_init = False

    def __init__(self, cache: HostCache, number: int) -> None:
        super().__init__()
        self._cache, self._number = cache, number

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: a session's memory is all there from its start."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store latents and their positions' part; see `HostCache.update`."""
        return self._cache.update(key_states, value_states, self._number)

    def update_indexer(self, indexer_key_states: Tensor) -> Tensor:
        """Store index keys; see `HostCache.store_keys`."""
        return self._cache.store_keys(self._number, indexer_key_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Tokens that a mask covers, from the first on."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """Tokens of the longest request."""
        return max(request.length for request in self._cache.requests)

    def get_max_length(self) -> int:
        """Tokens that the shortest lease has room for."""
        return min(request.limit_tokens for request in self._cache.requests)

    def reset(self) -> None:
        """Refuse: what a lease reserves is let go by `close`.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("a request's rows end with its lease: close the cache, and make another")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Refuse: beams would share rows that each writes.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("beam search needs a copy of rows per beam; decode greedily, or sample")


class HostCache(Cache):
    """Requests of one `HostKv`, as the cache of a forward pass.

    Attributes:
        requests: Whose the rows of the batch are, in order.
        decoding: Whether the pass under way adds one token to each; else it prefills.
        taken: Whether the layer under way has given its latents.
    """

    def __init__(self, kv: ModelKv, requests: Sequence[Running]) -> None:
        self._kv = kv
        self.requests = tuple(requests)
        self.decoding = False
        self.taken = False
        self._open: _OpenStep | None = None
        self._rows = torch.empty(0)
        self._first, self._count = 0, 0
        super().__init__(layers=[HostLayer(self, number) for number in range(kv.session.shape.layers)])

    def enter(self) -> None:
        """Say that a layer's attention begins: its latents are still to come."""
        self.taken = False

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store a layer's latents, and give those that attention of this pass reads.

        Args:
            key_states: Latents, `[batch, 1, token, 512]`; or K, expanded from latents that `store` has had already.
            value_states: The part of the key that carries the position, `[batch, 1, token, 64]`; or V.
            layer_idx: Which layer.
        """
        return (key_states, value_states) if self.taken else self.store(layer_idx, key_states, value_states)

    def store(self, layer: int, latent: Tensor, rope: Tensor) -> tuple[Tensor, Tensor]:
        """Take the new tokens' latents of a layer; in prefill, give those of all tokens so far.

        Raises:
            InvalidInput: Several requests are prefilled at once, or whatever a step's begin refuses.
        """
        if layer == 0:
            self._begin(latent.shape[0], latent.shape[2])
        self.taken = True
        numbers = torch.cat([latent, rope], dim=-1).squeeze(1)
        stored = ROW_FORMATS[self._kv.session.shape.row_format.row_bytes]
        if self.decoding:
            self._rows = pack_rows(numbers, stored)
            return latent, rope
        request, shape = self.requests[0], self._kv.session.shape
        self._rows = pack_rows(numbers[0], stored)
        if shape.place(layer)[1]:
            self._kv.session.prefill(request, layer, self._rows, first=self._first)
        if self._first == 0:
            return latent, rope
        before = self._kv.read_rows(request, layer, self._first).to(latent).view(1, 1, self._first, -1)
        return (
            torch.cat([before[..., :LATENT_WIDTH], latent], dim=2),
            torch.cat([before[..., LATENT_WIDTH:], rope], dim=2),
        )

    def store_keys(self, layer: int, key: Tensor) -> Tensor:
        """Take the new tokens' index keys of a layer, and give those of all tokens, `[batch, token, 128]`."""
        session = self._kv.session
        group, _ = session.shape.place(layer)
        if self._open is not None:
            keys = self._open.step.store_index_keys(layer, key.contiguous())
        else:
            session.prefill(self.requests[0], layer, self._rows, keys=key[0].contiguous(), first=self._first)
            keys = session.memory.keys[group]
        lengths = [request.length + self._count for request in self.requests]
        found = key.new_empty((len(self.requests), max(lengths), key.shape[-1]))
        seats = torch.tensor([request.seat for request in self.requests], device=key.device)
        _copy_keys(keys, session.memory.cache.state.page_map[seats], found)
        if min(lengths) < max(lengths):
            behind = torch.arange(max(lengths), device=key.device) >= torch.tensor(lengths, device=key.device)[:, None]
            found.masked_fill_(behind[:, :, None], 0)  # anything may be there
        return found

    def attend(self, layer: int, q: Tensor, indices: Tensor, *, scale: float) -> Tensor:
        """Attend to a decode step's picks of one layer.

        Args:
            layer: Which layer.
            q: Queries in the latent space, `[batch, 1, head, 576]`.
            indices: The picks that the model made, `i32 [batch, 1, picks]`; those behind a request's end are none.
            scale: What logits are multiplied by.

        Raises:
            InvalidInput: No step is under way: the model's first layer was left out.
        """
        if self._open is None:
            raise InvalidInput([Problem("layer", str(layer), "must come behind layer 0", "run the whole model")])
        step, session = self._open.step, self._kv.session
        group, place = session.shape.place(layer)
        picks = self._picks(indices) if place == 0 else None
        if picks is not None and self._kv.on_picks is not None:
            self._kv.on_picks(layer, self.requests, picks)
        out = step.attend(layer, q, self._rows, scale=scale, index=picks)
        if place == 0:
            self._kv.count_swaps(step.plan.counts, session.shape.layer_groups[group])
        if self._kv.on_attention is not None:
            self._kv.on_attention(layer, q, self._rows, out)
        if layer + 1 == session.shape.layers:
            scope, self._open = self._open.scope, None
            scope.__exit__(None, None, None)
        return out

    def attended(self, layer: int) -> None:
        """Say that a layer of a prefill is through; behind the last one its tokens are the request's."""
        if layer + 1 == self._kv.session.shape.layers:
            self._kv.session.prefilled(self.requests[0], self._first + self._count)

    def abandon(self) -> None:
        """Drop a pass that failed half way; nobody is further, and a retry decodes the same."""
        left, self._open = self._open, None
        if left is not None:
            with contextlib.suppress(_Abandoned):
                left.scope.__exit__(_Abandoned, _Abandoned(), None)

    def close(self) -> None:
        """Let the requests leave, and release their leases."""
        self.abandon()
        for request in self.requests:
            self._kv.session.leave(request)

    def __enter__(self) -> HostCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, batch: int, tokens: int) -> None:
        self.abandon()
        problems = []
        if batch != len(self.requests):
            rule = f"must be {len(self.requests)}, the requests of this cache"
            problems.append(Problem("batch", str(batch), rule, "make a cache of as many requests"))
        if tokens > 1 and batch > 1:
            problems.append(Problem("batch", str(batch), "must be 1 in prefill", "prefill one request at a time"))
        if tokens > 1 and self.requests[0].length + tokens > self.requests[0].limit_tokens:
            rule = f"and {self.requests[0].length} before must be at most {self.requests[0].limit_tokens}"
            problems.append(Problem("tokens", str(tokens), rule, "reserve a longer lease"))
        if problems:
            raise InvalidInput(problems)
        self.decoding = tokens == 1
        self._first, self._count = self.requests[0].length, tokens
        if self.decoding:
            scope = self._kv.session.step(self.requests)
            self._open = _OpenStep(scope, scope.__enter__())

    def _picks(self, indices: Tensor) -> Tensor:
        """Drop picks behind a request's end, which a padded batch has, and pad to the session's top-k."""
        lengths = torch.tensor([request.length for request in self.requests], device=indices.device).view(-1, 1, 1)
        picks = torch.where(indices <= lengths, indices, -1)
        missing = self._kv.session.shape.geometry.top_k - indices.shape[-1]
        return torch.nn.functional.pad(picks, (0, missing), value=-1)


def _copy_keys(keys: IndexKeys, page_map: Tensor, to: Tensor) -> None:
    """Copy index keys of the first tokens of some requests, `[request, token, 128]`, as numbers.

    Args:
        keys: Index keys of a group.
        page_map: The requests' pages, `i32 [request, page]`.
        to: Where to.
    """
    tokens = to.shape[1]
    for first in range(0, to.shape[0], _REQUESTS_AT_ONCE):
        some = slice(first, first + _REQUESTS_AT_ONCE)
        held = page_map[some, : -(-tokens // PAGE_ROWS)].clamp_min(0)
        values = keys.values()[held].float()
        if keys.stored.dtype is not torch.float32:
            values *= keys.scales()[held].unsqueeze(-1)
        to[some] = values.flatten(1, 2)[:, :tokens]


def read_rows(rows: Tensor, pages: Sequence[int], tokens: int, device: torch.device) -> Tensor:
    """Read rows of one layer from host memory, `u8 [page, row, byte]`, as numbers on a device, `f32 [token, 576]`."""
    held = torch.tensor(pages[: -(-tokens // PAGE_ROWS)])
    return unpack_rows(rows[held].flatten(0, 1)[:tokens].to(device), torch.float32)
