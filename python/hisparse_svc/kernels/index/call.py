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

from hisparse_svc.kernels.checks import Checks
from hisparse_svc.kernels.geometry import PAGE_ROWS
from hisparse_svc.kernels.index.keys import INDEX_F32, INDEX_WIDTH, IndexKeys

if TYPE_CHECKING:
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
        shape = (self.plan.batch, self.geometry.query_rows, self.heads if self.q.dim() == 4 else 1)
        f64 = self.keys.stored is INDEX_F32 and self.q.dtype is torch.float64
        with Checks(self.keys.pages.device) as check:
            check.state(self.geometry, self.state)
            check.plan(self.geometry, self.plan)
            check_page_map(check, self.geometry, self.page_map)
            if not check.dims("q", self.q, f"{self.plan.batch}, query row, head, {INDEX_WIDTH}", _CALLER):
                return
            check.tensor("weights", self.weights, shape, torch.float32, _CALLER)
            check.tensor("q", self.q, (*shape, INDEX_WIDTH), torch.float64 if f64 else self.keys.stored.dtype, _CALLER)
            check.between("heads", shape[2], MAX_INDEX_HEADS, "split the call")
            check_logits(check, self.geometry, self.plan, self.logits)


def logits_shape(geometry: Geometry, batch: int) -> tuple[int, int, int]:
    """Give the shape of the logits of `batch` requests: whole pages of the longest context."""
    return (batch, geometry.query_rows, geometry.map_pages * PAGE_ROWS)


def check_logits(check: Checks, geometry: Geometry, plan: StepPlan, logits: Tensor) -> None:
    """Check logits of a step: rows may be longer than the context, and must start aligned."""
    tokens = int(logits.shape[-1]) if logits.dim() == 3 else 0
    least = geometry.context_tokens
    if tokens < least or tokens % LOGIT_ALIGN_TOKENS:
        rule = f"must hold at least {least} tokens a row, a multiple of {LOGIT_ALIGN_TOKENS}"
        check.refuse("logits.shape", tuple(logits.shape), rule, "allocate index_logits_shape(geometry, batch)")
        return
    check.tensor("logits", logits, (plan.batch, geometry.query_rows, tokens), torch.float32, _CALLER)
    if logits.data_ptr() % (4 * LOGIT_ALIGN_TOKENS):
        check.refuse("logits.address", logits.data_ptr(), "must be a multiple of 16", "allocate them whole")


def check_page_map(check: Checks, geometry: Geometry, page_map: Tensor) -> None:
    """Check a map from the pages of a request to pages of the keys."""
    check.tensor("page_map", page_map, (geometry.seats, geometry.map_pages), torch.int32, _CALLER)


def check_new_keys(check: Checks, values: Tensor, shape: tuple[int, ...]) -> None:
    """Check keys about to be stored."""
    dtype = values.dtype if values.dtype in KEY_TYPES else torch.bfloat16
    check.tensor("values", values, shape, dtype, "pass keys in bfloat16 or float32")
