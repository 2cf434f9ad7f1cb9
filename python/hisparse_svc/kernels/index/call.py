"""One call of the indexer, checked: what every backend is given.

::

    q        e4m3 [batch, query row, head, 128]     weights  f32 [batch, query row, head], q's scales multiplied in
    keys     pages of one layer                     page_map i32 [seat, page of the request] ──► page of the keys
    logits   f32  [batch, query row, tokens]        as many tokens as the page map has room for, or more

Query row r of R sees the tokens before `lengths[seat] - (R - 1 - r)`: all up to itself. Logits behind those are not
written, and a padded request (seat -1) has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hisparse_svc.kernels.checks import Checks, step_kinds
from hisparse_svc.kernels.geometry import PAGE_ROWS
from hisparse_svc.kernels.host_rows import CHUNK_BYTES
from hisparse_svc.kernels.index.keys import INDEX_F32, INDEX_WIDTH, IndexKeys
from hisparse_svc.kernels.kinds import demand_kinds, each

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from hisparse_svc.kernels.geometry import Geometry
    from hisparse_svc.kernels.tensors import SeatState, StepPlan

__all__ = [
    "LOGIT_ALIGN_TOKENS",
    "MAX_INDEX_HEADS",
    "IndexCall",
    "check_logits",
    "check_new_keys",
    "check_page_map",
    "logits_shape",
]

MAX_INDEX_HEADS = 128
"""Heads of an index query."""

LOGIT_ALIGN_TOKENS = 4
"""Logits of a query row start at a multiple of this: loads are 16 bytes."""

KEY_TYPES = (torch.bfloat16, torch.float32)
"""Types of new keys, before they are quantised."""

_CALLER = "see the shapes that indexer documents"


@dataclass(frozen=True)
class IndexCall:
    """Tensors of one call of `indexer`, which says their shapes; they fit each other."""

    geometry: Geometry
    keys: IndexKeys
    state: SeatState
    plan: StepPlan
    page_map: Tensor
    q: Tensor
    weights: Tensor
    logits: Tensor

    @property
    def heads(self) -> int:
        """Heads of a query."""
        return int(self.q.shape[2])

    @property
    def query_rows(self) -> int:
        """Query rows of a request."""
        return int(self.q.shape[1])

    def check(self) -> None:
        """Check that they do.

        Raises:
            InvalidInput: With everything wrong about them.
        """
        tensors = each(torch.Tensor, q=self.q, weights=self.weights, logits=self.logits, page_map=self.page_map)
        demand_kinds(step_kinds(self.geometry, self.state, self.plan), each(IndexKeys, keys=self.keys), tensors)
        shape = (self.plan.batch, self.geometry.query_rows, self.heads if self.q.dim() == 4 else 1)
        f64 = self.keys.stored is INDEX_F32 and self.q.dtype is torch.float64
        with Checks(self.keys.pages.device) as check:
            check.state(self.geometry, self.state)
            check.plan(self.geometry, self.plan)
            check_page_map(check, self.geometry, self.page_map)
            if not check.dims("q", self.q, f"{self.plan.batch}, query row, head, {INDEX_WIDTH}", _CALLER):
                return
            check.tensor("weights", self.weights, shape, torch.float32, _CALLER)
            dtype = torch.float64 if f64 else self.keys.stored.dtype
            check.tensor("q", self.q, (*shape, INDEX_WIDTH), dtype, _CALLER, align_bytes=CHUNK_BYTES)
            check.between("heads", shape[2], MAX_INDEX_HEADS, "split the call")
            reads = {"q": self.q, "weights": self.weights, "keys": self.keys.pages}
            check_logits(check, self.geometry, self.plan, self.logits, reads=reads)


def logits_shape(geometry: Geometry, batch: int) -> tuple[int, int, int]:
    """Give the shape of the logits of `batch` requests: whole pages of the longest context."""
    return (batch, geometry.query_rows, geometry.map_pages * PAGE_ROWS)


def check_logits(
    check: Checks, geometry: Geometry, plan: StepPlan, logits: Tensor, *, reads: Mapping[str, Tensor] | None = None
) -> None:
    """Check logits of a step: rows may be longer than the context, and must start aligned.

    Args:
        check: Takes what is wrong.
        geometry: Shape of the hot cache.
        plan: The step.
        logits: Its logits.
        reads: What is read where the logits are written; none: they are only read.
    """
    tokens = int(logits.shape[-1]) if logits.dim() == 3 else 0
    least = geometry.context_tokens
    if tokens < least or tokens % LOGIT_ALIGN_TOKENS:
        rule = f"must hold at least {least} tokens a row, a multiple of {LOGIT_ALIGN_TOKENS}"
        check.refuse("logits.shape", tuple(logits.shape), rule, "allocate index_logits_shape(geometry, batch)")
        return
    shape = (plan.batch, geometry.query_rows, tokens)
    if reads is None:
        check.tensor("logits", logits, shape, torch.float32, _CALLER, align_bytes=4 * LOGIT_ALIGN_TOKENS)
    else:
        check.written("logits", logits, shape, torch.float32, _CALLER, reads=reads)


def check_page_map(check: Checks, geometry: Geometry, page_map: Tensor) -> None:
    """Check a map from the pages of a request to pages of the keys."""
    check.tensor("page_map", page_map, (geometry.seats, geometry.map_pages), torch.int32, _CALLER)


def check_new_keys(check: Checks, values: Tensor, shape: tuple[int, ...]) -> None:
    """Check keys about to be stored."""
    dtype = values.dtype if values.dtype in KEY_TYPES else torch.bfloat16
    check.tensor("values", values, shape, dtype, "pass keys in bfloat16 or float32", align_bytes=CHUNK_BYTES)
