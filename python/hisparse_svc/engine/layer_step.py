"""One step of a decode session, layer by layer: what happens on the device, and nothing else.

::

    layer 0 of a group   append row ─ append key ─ indexer ─ resolve ─┬──────────────┬─ attention ──► out
    (has the indexer)                                       side stream └─ gather, all ┘
                                                                           layers of the group
    layers behind it     append row ──────────────────────────────────────────────────── attention ──► out
    last of a group                                                     side stream: backup of its new rows

Every tensor is at a fixed address and nothing waits on the host, so a step may be captured in a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import torch

from hisparse_svc.engine.backups import BackUp, back_up
from hisparse_svc.engine.hits_first import attend_hits_first
from hisparse_svc.engine.swapping import SwapIn, swap_in
from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kernels import append, append_index_keys, indexer, quantise, sparse_mla_decode
from hisparse_svc.kernels.checks import Checks
from hisparse_svc.kernels.decode.rows import KEY_WIDTH, ROW_FORMATS, pack_rows
from hisparse_svc.kernels.index.keys import INDEX_FP8
from hisparse_svc.kernels.kinds import demand_kinds, each

if TYPE_CHECKING:
    from torch import Tensor

    from hisparse_svc.engine.decode_memory import DecodeMemory
    from hisparse_svc.kernels import IndexKeys, StepPlan
    from hisparse_svc.kernels.decode.rows import StoredRow

__all__ = ["IndexInputs", "LayerStep", "Overlap", "overlap_of"]


class Overlap(StrEnum):
    """What of a gather is hidden."""

    NONE = "none"
    """Nothing: attention runs after it, on the same stream."""
    PREFETCH = "prefetch"
    """The rows of a group's later layers are fetched while its first layer computes."""
    HITS_FIRST = "hits-first"
    """That, and a group's first layer attends to its hits while its own misses are copied."""


def overlap_of(name: Overlap | str) -> Overlap:
    """Give an overlap by its name.

    Raises:
        InvalidInput: There is none of that name.
    """
    if name not in list(Overlap):
        rule = f"must be one of {', '.join(Overlap)}"
        raise InvalidInput([Problem("overlap", str(name), rule, "name one of engine.Overlap")])
    return Overlap(name)


@dataclass(frozen=True)
class IndexInputs:
    """What the indexer of a layer is given.

    Attributes:
        q: Queries, any float type, `[batch, query row, head, 128]`.
        weights: What each head counts, `f32 [batch, query row, head]`.
        key: Keys of the new tokens, bfloat16 or float32, `[batch, query row, 128]`.
    """

    q: Tensor
    weights: Tensor
    key: Tensor


class LayerStep:
    """One step over all layers: `attend` once for each, in order."""

    def __init__(self, memory: DecodeMemory, plan: StepPlan, overlap: Overlap) -> None:
        self.plan = plan
        self._memory = memory
        self._overlap = overlap
        self._next_layer = 0
        self._swap = SwapIn(plan.rows, plan.counts)
        self._backups: list[BackUp] = []

    @property
    def batch(self) -> int:
        """Requests of the step, padded ones included."""
        return self.plan.batch

    def advance(self) -> None:
        """Make room for the new tokens in every request's length; before the first layer."""
        cache = self._memory.cache
        cache.advance(self.plan.seats, cache.geometry.query_rows)

    def attend(
        self,
        layer: int,
        q: Tensor,
        key: Tensor,
        *,
        scale: float,
        index: IndexInputs | Tensor | None = None,
        sink: Tensor | None = None,
        out: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> Tensor:
        """Store the new tokens' rows of one layer and attend to the picked ones.

        Args:
            layer: Which layer; they come in order, from 0.
            q: Queries in the latent space, `bf16 [batch, query row, head, 576]`.
            key: The new tokens' rows: numbers `[batch, query row, 576]`, or bytes as stored, `u8 [.., row_bytes]`.
            scale: What logits are multiplied by.
            index: For the first layer of a group, and for it alone: what its indexer is given, or picks from elsewhere,
                `i32 [batch, query row, top_k]`.
            sink: Attention sink, `f32 [head]`.
            out: Where to write the output, as in `sparse_mla_decode`.
            lse: Where to write the log of the sum of exponentials, as there.

        Returns:
            Attention's output in the latent space, `[batch, query row, head, 512]`; padded requests give 0.

        Raises:
            InvalidInput: A layer out of order, indexer inputs missing or too many, or a tensor that does not fit.
            DeviceUnavailable: The GPU cannot run a kernel.
            CompileFailed: A kernel does not compile.
        """
        memory, cache = self._memory, self._memory.cache
        group, place = memory.shape.place(layer)
        stored = ROW_FORMATS[memory.shape.row_format.row_bytes]
        self._check(layer, place, index)
        self._check_key(key, stored)
        row = key if key.shape[-1] == stored.row_bytes else pack_rows(key, stored)
        hot = cache.rows[group][place]
        append(cache.geometry, hot, cache.state, self.plan, row)
        if isinstance(index, IndexInputs):
            self.score(layer, index)
        elif index is not None:
            with Checks(cache.device) as check:
                check.tensor("index", index, tuple(self.plan.picks.shape), torch.int32, "pass picks of this batch")
            self.plan.picks.copy_(index)
        if place == 0 and self._overlap is Overlap.HITS_FIRST:
            result, _, self._swap = attend_hits_first(
                cache,
                group,
                memory.host.rows[group],
                memory.split,
                q,
                scale=scale,
                sink=sink,
                out=out,
                lse=lse,
                side_stream=memory.gather_stream,
                expected_misses=memory.expected_misses,
                first_layers=1,
            )
            self._count(group)
        else:
            if place == 0:
                self._fetch(group)
            self._swap.wait(0 if place == 0 else -1)
            result, _ = sparse_mla_decode(q, hot, self._swap.rows, scale=scale, sink=sink, out=out, lse=lse)
        self._next_layer = layer + 1
        if place + 1 == memory.shape.layer_groups[group]:
            self._swap.wait(-1)  # the next group's plan goes where this one's is read
            self._back_up(group)
        return result

    def score(self, layer: int, index: IndexInputs) -> None:
        """Store the new tokens' index keys of a layer and write its top-k to `plan.picks`; `attend` does it by itself.

        Args:
            layer: The first layer of a group.
            index: What its indexer is given.

        Raises:
            InvalidInput: A tensor that does not fit.
            DeviceUnavailable: The GPU cannot run a kernel.
            CompileFailed: A kernel does not compile.
        """
        memory, cache = self._memory, self._memory.cache
        demand_kinds(each(torch.Tensor, q=index.q, weights=index.weights, key=index.key))
        if index.weights.shape != index.q.shape[:-1]:
            rule = f"must be {tuple(index.q.shape[:-1])}: one for each head of the queries"
            problem = Problem("weights.shape", str(tuple(index.weights.shape)), rule, "give every query's own")
            raise InvalidInput([problem])
        keys = self.store_index_keys(layer, index.key)
        if keys.stored is INDEX_FP8:
            q, scales = quantise(index.q)
            weights = index.weights * scales
        else:
            q, weights = index.q, index.weights
        logits = memory.logits[: self.batch]
        indexer(cache.geometry, keys, cache.state, self.plan, q, weights=weights, logits=logits)

    def store_index_keys(self, layer: int, key: Tensor) -> IndexKeys:
        """Store the new tokens' index keys of a layer; for picks from elsewhere, as `score` does it by itself.

        Args:
            layer: The first layer of a group.
            key: Keys of the new tokens, bfloat16 or float32, `[batch, query row, 128]`.

        Returns:
            The index keys of the group, the new ones among them.

        Raises:
            InvalidInput: A tensor that does not fit.
            DeviceUnavailable: The GPU cannot run a kernel.
            CompileFailed: A kernel does not compile.
        """
        cache = self._memory.cache
        group, _ = self._memory.shape.place(layer)
        keys = self._memory.keys[group]
        append_index_keys(cache.geometry, keys, cache.state, self.plan, key)
        return keys

    def finish(self) -> None:
        """Join the side streams; every layer must have been attended.

        Raises:
            InvalidInput: A layer is missing.
        """
        if self._next_layer != self._memory.shape.layers:
            rule = f"must be {self._memory.shape.layers}, all of the model"
            problem = Problem("layers of the step", str(self._next_layer), rule, "call attend for every layer")
            raise InvalidInput([problem])
        for done in self._backups:
            done.wait()

    def _check(self, layer: int, place: int, index: IndexInputs | Tensor | None) -> None:
        problems = []
        if layer != self._next_layer:
            rule = f"must be {self._next_layer}: a step's layers come in order, each once"
            problems.append(Problem("layer", str(layer), rule, "call attend once for each layer"))
        if (index is None) == (place == 0):
            has = "none" if index is None else "inputs"
            rule = "must be given for the first layer of a group, and for no other"
            problems.append(Problem("index", has, rule, f"layer {layer} is number {place} of its group"))
        elif index is not None and not isinstance(index, (IndexInputs, torch.Tensor)):
            rule = "must be IndexInputs, or a tensor of picks"
            problems.append(Problem("index", type(index).__name__, rule, "give what the indexer scores, or a top-k"))
        if problems:
            raise InvalidInput(problems)

    def _check_key(self, key: Tensor, stored: StoredRow) -> None:
        cache = self._memory.cache
        with Checks(cache.device) as check:
            if not isinstance(key, torch.Tensor):
                check.refuse("key", type(key).__name__, "must be a tensor", "pass the new tokens' rows")
                return
            shape = (self.batch, cache.geometry.query_rows)
            widths = (KEY_WIDTH, stored.row_bytes)
            if key.dim() != 3 or tuple(key.shape[:2]) != shape or key.shape[2] not in widths:
                rule = f"must be ({shape[0]}, {shape[1]}, {KEY_WIDTH}), or ({shape[0]}, {shape[1]}, {stored.row_bytes})"
                check.refuse("key.shape", tuple(key.shape), rule, "pass numbers, or rows as stored, of this batch")
            elif key.dtype is not torch.uint8 if key.shape[2] == stored.row_bytes else not key.is_floating_point():
                rule = (
                    f"must be torch.uint8 where rows are stored, {stored.row_bytes} bytes, and a float type elsewhere"
                )
                check.refuse("key.dtype", key.dtype, rule, "pass numbers, or rows as stored")
            check.placed("key", key)

    def _fetch(self, group: int) -> None:
        memory = self._memory
        ahead = self._overlap is not Overlap.NONE
        self._swap = swap_in(
            memory.cache,
            group,
            memory.host.rows[group],
            self.batch,
            side_stream=memory.gather_stream if ahead else None,
            expected_misses=memory.expected_misses,
            first_layers=1 if ahead else 0,
        )
        self._count(group)

    def _count(self, group: int) -> None:
        if self._memory.meter is not None:
            self._memory.meter.count(group, self.plan)

    def _back_up(self, group: int) -> None:
        memory = self._memory
        if not memory.host.writable:
            return
        side: Any = memory.backup_stream
        self._backups.append(back_up(memory.cache, group, memory.host.rows[group], self.batch, side_stream=side))
