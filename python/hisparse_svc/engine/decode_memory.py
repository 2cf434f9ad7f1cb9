"""What a decode session keeps on the device, all of it allocated once.

::

    cache    hot rows, words, page maps, plan     keys     index keys of each group, by host page number
    logits   scores of one step                   split    its picks, hits and misses apart
    streams  one to gather on, one to back up on
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from hisparse_svc.engine.decode_shape import DecodeShape
from hisparse_svc.engine.host_copy import HostCopy
from hisparse_svc.engine.hot_cache import HotCache
from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kernels import IndexKeys, SplitPicks, index_logits_shape
from hisparse_svc.kernels.decode.rows import ROW_FORMATS
from hisparse_svc.kernels.kinds import demand_kinds, each
from hisparse_svc.kernels.tensors import lasting, nbytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from hisparse_svc.engine.metering import SwapInMeter

__all__ = ["DecodeMemory"]


@dataclass
class DecodeMemory:
    """Memory of a session, and the host memory behind it.

    Attributes:
        shape: Shape of it.
        host: Host memory.
        cache: Hot rows and everything that says which token is where.
        keys: Index keys of each group.
        logits: Scores of one step, `f32 [seat, query row, token]`.
        split: Picks of one step, hits and misses apart.
        gather_stream: Stream for gathers; none on the CPU.
        backup_stream: Stream for backups: the link carries both directions at once.
        expected_misses: Missing rows to expect over a batch, for the choice of SMs; 0: a share of the picks.
        meter: Counts what is swapped in; `None` for no count.
    """

    shape: DecodeShape
    host: HostCopy
    cache: HotCache
    keys: tuple[IndexKeys, ...]
    logits: Tensor
    split: SplitPicks
    gather_stream: Any = None
    backup_stream: Any = None
    expected_misses: int = 0
    meter: SwapInMeter | None = None

    @staticmethod
    @lasting
    def allocate(shape: DecodeShape, host: HostCopy, device: torch.device | str) -> DecodeMemory:
        """Allocate everything, empty.

        Raises:
            InvalidInput: The host memory is of another shape, keys are pooled, or attention does not read such rows.
        """
        demand_kinds(each(DecodeShape, shape=shape), each(HostCopy, host=host))
        shape.check_decodes()
        host.check(shape)
        if (row_bytes := shape.row_format.row_bytes) not in ROW_FORMATS:
            rule = f"must be one of {', '.join(map(str, ROW_FORMATS))}, the rows that attention reads"
            raise InvalidInput([Problem("row_format.row_bytes", str(row_bytes), rule, "store MLA rows")])
        cache = HotCache(shape.geometry, shape.layer_groups, shape.row_format, device, pool_rows=shape.pool_rows)
        on_gpu = cache.device.type == "cuda"
        stream: Any = torch.cuda.Stream  # untyped in torch
        return DecodeMemory(
            shape,
            host,
            cache,
            tuple(IndexKeys.allocate(shape.pages, device, shape.index_format) for _ in shape.layer_groups),
            torch.empty(index_logits_shape(shape.geometry, shape.geometry.seats), device=device),
            SplitPicks.allocate(shape.geometry, shape.geometry.seats, device),
            stream(cache.device) if on_gpu else None,
            stream(cache.device) if on_gpu else None,
        )

    def back_up_keys(self, pages: Sequence[int]) -> None:
        """Copy index keys of these pages to host memory, behind what the current stream has done; a reader does not."""
        for first, last in _runs(pages) if self.host.writable else ():
            for keys, host in zip(self.keys, self.host.keys, strict=True):
                host[first:last].copy_(keys.pages[first:last], non_blocking=True)

    def load_keys(self, pages: Sequence[int]) -> None:
        """Copy index keys of these pages from host memory."""
        for first, last in _runs(pages):
            for keys, host in zip(self.keys, self.host.keys, strict=True):
                keys.pages[first:last].copy_(host[first:last], non_blocking=True)

    @property
    def device_bytes(self) -> dict[str, int]:
        """Bytes allocated, under the names of a plan's `device_bytes`."""
        keys = nbytes(*(keys.pages for keys in self.keys))
        return {**self.cache.device_bytes, "indexer": keys, "draft": 0, "resident": 0}

    @property
    def workspace_bytes(self) -> int:
        """Bytes of scratch beside them; part of the activations that an engine sets apart, as attention's output is."""
        return nbytes(self.logits) + self.split.nbytes


def _runs(pages: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Give runs of consecutive page numbers, as first and behind the last."""
    start = 0
    for place in range(1, len(pages) + 1):
        if place == len(pages) or pages[place] != pages[place - 1] + 1:
            yield pages[start], pages[place - 1] + 1
            start = place
