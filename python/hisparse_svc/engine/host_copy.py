"""Host memory of a session: the rows and index keys of every page, on which device memory is a cache.

::

    HostPool ──► rows  of each group   [page, row of the page, layer, byte]
                 keys  of each group   [page, byte]                            the same page numbers in both
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kernels import HostRows
from hisparse_svc.kernels.tensors import lasting

if TYPE_CHECKING:
    from torch import Tensor

    from hisparse_svc.engine.decode_shape import DecodeShape
    from hisparse_svc.engine.host_pool import HostPool

__all__ = ["HostCopy"]


@dataclass(frozen=True)
class HostCopy:
    """Where rows and index keys of each group lie in host memory.

    Attributes:
        rows: Rows of main KV.
        keys: Pages of index keys, bytes `[page, page_bytes]`.
        writable: Whether this rank backs up; one of an engine's ranks does.
        pool: The pool they are of; none without a service.
    """

    rows: tuple[HostRows, ...]
    keys: tuple[Tensor, ...]
    writable: bool = True
    pool: HostPool | None = None

    @staticmethod
    @lasting
    def of_pool(pool: HostPool) -> HostCopy:
        """Take the memory of an attached pool; `register` it first where there is a GPU.

        Args:
            pool: The pool.
        """
        first = [layers[0] for layers in pool.groups()]
        from_dlpack: Any = torch.utils.dlpack.from_dlpack  # untyped in torch; numpy's way refuses a reader's memory
        keys = tuple(from_dlpack(pool.keys(layer)) for layer in first)
        keys = tuple(held.view(held.shape[0], -1) for held in keys)  # keys without scales come row by row
        return HostCopy(tuple(pool.rows(layer) for layer in first), keys, pool.writable, pool)

    @staticmethod
    @lasting
    def allocate(shape: DecodeShape, pages: int = 0, *, pinned: bool = False) -> HostCopy:
        """Make host memory without a service, for tests and benchmarks.

        Args:
            shape: Shape of the session.
            pages: Pages of it; 0: those of the shape.
            pinned: Page-lock it for CUDA.
        """
        pages = pages or shape.pages
        row = shape.row_format
        return HostCopy(
            tuple(
                HostRows.allocate(pages, layers, row.row_bytes, stride_bytes=row.stride_bytes, pinned=pinned)
                for layers in shape.layer_groups
            ),
            tuple(
                torch.empty((pages, shape.key_page_bytes), dtype=torch.uint8, pin_memory=pinned)
                for _ in shape.layer_groups
            ),
        )

    @property
    def attached(self) -> bool:
        """Whether the pages are still this process's to use."""
        return self.pool is None or self.pool.attached

    def check_attached(self) -> None:
        """Demand that the pages are still this process's to use.

        Raises:
            AttachFailed: The pool was closed.
        """
        if self.pool is not None:
            self.pool.check_attached()

    def check(self, shape: DecodeShape) -> None:
        """Check that a session of this shape fits it.

        Raises:
            InvalidInput: With everything that does not.
        """
        problems = []

        def expect(field: str, value: object, wanted: object) -> None:
            if value != wanted:
                rule = f"must be {wanted}, as the session's shape says"
                problems.append(Problem(field, str(value), rule, "plan both for one model and one KV type"))

        expect("host.groups", tuple(rows.layers for rows in self.rows), shape.layer_groups)
        expect("host.keys", len(self.keys), len(shape.layer_groups))
        for rows, keys in zip(self.rows, self.keys, strict=False):
            expect("host.row_bytes", rows.row_bytes, shape.row_format.row_bytes)
            expect("host.key_page_bytes", int(keys.shape[-1]), shape.key_page_bytes)
            expect("host.key_pages", int(keys.shape[0]), rows.pages)
            expect("host.key_dtype", keys.dtype, torch.uint8)
            expect("host.key_device", keys.device.type, "cpu")
            if problems:
                break
        if problems:
            raise InvalidInput(problems)
