"""What a decode session must do, written plainly: every request keeps all its rows and keys, nothing is ever swapped.

The rows and keys of a request follow from its seed, so any of them can be made again to compare with.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from hisparse_svc.engine import IndexInputs
from hisparse_svc.kernels.decode.rows import ROW_FORMATS, pack_rows, unpack_rows

if TYPE_CHECKING:
    from hisparse_svc.engine import DecodeSession, LayerStep, Running
    from torch import Tensor

HEADS, INDEX_HEADS, SCALE = 8, 4, 0.07


@dataclass(eq=False)
class PlainRequest:
    """All rows of a request, those of tokens to come included."""

    rows: Tensor
    """Bytes, `[layer, token, row_bytes]`."""
    keys: Tensor
    """Index keys, `[group, token, 128]`."""
    queries: Tensor
    """`[layer, token, head, 576]`."""
    index_queries: Tensor
    weights: Tensor
    running: Running | None = field(default=None)

    @staticmethod
    def make(session: DecodeSession, tokens: int, seed: int) -> PlainRequest:
        shape = session.shape
        random = torch.Generator().manual_seed(seed)
        groups = len(shape.layer_groups)

        def numbers(*size: int) -> Tensor:
            return torch.randn(size, generator=random)

        return PlainRequest(
            rows=pack_rows(numbers(shape.layers, tokens, 576), ROW_FORMATS[shape.row_format.row_bytes]),
            keys=numbers(groups, tokens, 128).bfloat16(),
            queries=numbers(shape.layers, tokens, HEADS, 576).bfloat16(),
            index_queries=numbers(groups, tokens, INDEX_HEADS, 128).bfloat16(),
            weights=numbers(groups, tokens, INDEX_HEADS),
        )


@dataclass
class PlainStep:
    """Runs one step of a session and compares everything that attention is given with the plain requests."""

    session: DecodeSession
    requests: list[PlainRequest]
    batch: int
    exact_attention: bool = False
    outputs: list[Tensor] = field(default_factory=list)

    def __call__(self, step: LayerStep) -> None:
        shape = self.session.shape
        for layer in range(shape.layers):
            group, place = shape.place(layer)
            index = None
            if place == 0:
                index = IndexInputs(
                    self._new("index_queries", group), self._new("weights", group), self._new("keys", group)
                )
            q = self._new("queries", layer)
            row = self._new("rows", layer)
            out = step.attend(layer, q, row, scale=SCALE, index=index)
            self.outputs.append(out.cpu())
            self._compare(step, layer, q, out)

    def _new(self, what: str, of: int) -> Tensor:
        """The step's new tokens of each request, of one layer or group, padded to the batch."""
        device = self.session.memory.cache.device
        tokens = self.session.shape.geometry.query_rows
        parts = []
        for plain in self.requests:
            assert plain.running is not None
            parts.append(getattr(plain, what)[of, plain.running.length : plain.running.length + tokens])
        parts += [torch.zeros_like(parts[0])] * (self.batch - len(parts))
        return torch.stack(parts).contiguous().to(device)

    def _compare(self, step: LayerStep, layer: int, q: Tensor, out: Tensor) -> None:
        shape, cache = self.session.shape, self.session.memory.cache
        group, place = shape.place(layer)
        hot = cache.rows[group][place]
        for number, plain in enumerate(self.requests):
            running = plain.running
            assert running is not None
            for query in range(self.session.shape.geometry.query_rows):
                seen = running.length + 1 + query
                picks = step.plan.picks[number, query].cpu().long()
                rows = step.plan.rows[number, query].cpu().long()
                valid = picks >= 0
                picked = picks[valid]
                where = f"layer {layer}, seat {running.seat}, length {running.length}, query {query}"
                assert len(picked) == min(seen, shape.geometry.top_k), where
                assert len(set(picked.tolist())) == len(picked), where
                assert int(picked.max()) < seen, where
                assert bool((rows[valid] >= 0).all()), where
                assert bool((rows[~valid] == -1).all()), where
                if place == 0:
                    self._compare_picks(plain, group, running.length + query, picked, where)
                assert torch.equal(hot[rows[valid].to(hot.device)].cpu(), plain.rows[layer][picked]), where
                if self.exact_attention:
                    wanted = _attention(q[number, query].cpu(), plain.rows[layer], picked)
                    error = float((out[number, query].cpu().double() - wanted).norm() / wanted.norm())
                    assert error <= 5e-3, f"{where}: error {error}"
        assert not bool(out[len(self.requests) :].any()), f"layer {layer}: padded requests must give 0"

    def _compare_picks(self, plain: PlainRequest, group: int, token: int, picked: Tensor, where: str) -> None:
        """No token that was left out scores more than one that was picked, but for the rounding of FP8."""
        logits = plain.index_queries[group, token].float() @ plain.keys[group, : token + 1].float().T
        scores = plain.weights[group, token] @ logits.relu()
        left_out = torch.ones(token + 1, dtype=torch.bool)
        left_out[picked] = False
        if bool(left_out.any()):
            rounding = 0.15 * float(plain.weights[group, token].abs() @ logits.abs().amax(-1))
            assert float(scores[left_out].max() - scores[picked].min()) <= rounding, where


def _attention(q: Tensor, rows: Tensor, picked: Tensor) -> Tensor:
    """One query over picked rows, in float64."""
    keys = unpack_rows(rows[picked])
    weights = torch.softmax(q.double() @ keys.T * SCALE, dim=-1)
    return weights @ keys[:, :512]


def compare_host(session: DecodeSession, plain: PlainRequest) -> None:
    """Everything that is called durable is in host memory: rows and index keys."""
    running, host = plain.running, session.memory.host
    assert running is not None
    durable = running.durable_tokens
    assert durable % 64 == 0
    assert running.length - 64 - 8 < durable <= running.length
    pages = torch.tensor(running.pages[: durable // 64], dtype=torch.long)
    for layer in range(session.shape.layers):
        group, place = session.shape.place(layer)
        rows = host.rows[group].view[pages, :, place].flatten(0, 1)
        assert torch.equal(rows, plain.rows[layer, :durable]), f"layer {layer}, {durable} tokens"
    for group, keys in enumerate(session.memory.keys):
        assert torch.equal(host.keys[group][pages], keys.pages.cpu()[pages]), f"group {group}"
