"""Index keys of one layer, page by page (`hisparse-core::layout` is where the formats are defined).

::

    fp8   page of 8,448 B    [ key 0 │ key 1 │ … key 63 ]  64 × 128 × e4m3      [ scale 0 … scale 63 ]  64 × fp32
    f32   page of 32,768 B   [ key 0 │ key 1 │ … key 63 ]  64 × 128 × fp32      for tests, where arithmetic is exact

Token t of a request is key t mod 64 of the page that its page map names at t // 64. What lies behind a request's last
token may be anything, NaN too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kernels.devices import usable_device
from hisparse_svc.kernels.geometry import PAGE_ROWS
from hisparse_svc.kernels.host_rows import CHUNK_BYTES
from hisparse_svc.kernels.kinds import demand_kinds, each
from hisparse_svc.kernels.tensors import lasting

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["INDEX_F32", "INDEX_FORMATS", "INDEX_FP8", "INDEX_WIDTH", "IndexFormat", "IndexKeys"]

INDEX_WIDTH = 128
"""Numbers of an index key, and of one head of an index query."""

SCALE_BYTES = 4
"""Bytes of the scale of one FP8 key."""

_MAX_PAGES = 2**31 - 1


@dataclass(frozen=True)
class IndexFormat:
    """How index keys are stored: `INDEX_FP8`, as a plan counts them, or `INDEX_F32`, for tests with exact arithmetic.

    Attributes:
        name: What tables and messages call it.
        dtype: How keys, and the queries that go with them, are stored.
        key_bytes: Bytes of one key, its scale included.
    """

    name: str
    dtype: torch.dtype
    key_bytes: int

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        return PAGE_ROWS * self.key_bytes


INDEX_FP8 = IndexFormat("fp8", torch.float8_e4m3fn, INDEX_WIDTH + SCALE_BYTES)
INDEX_F32 = IndexFormat("f32", torch.float32, INDEX_WIDTH * 4)

INDEX_FORMATS = {stored.page_bytes: stored for stored in (INDEX_FP8, INDEX_F32)}
"""Formats by the bytes of a page: no two are equally long."""


@dataclass(frozen=True)
class IndexKeys:
    """Index keys of one layer.

    Attributes:
        pages: Bytes, `u8 [page, page_bytes]`; pages may be a pitch apart.

    Raises:
        InvalidInput: With everything wrong about them.

    Example:
        >>> IndexKeys.allocate(10, "cpu").pages.shape
        torch.Size([10, 8448])
    """

    pages: Tensor

    def __post_init__(self) -> None:
        demand_kinds(each(torch.Tensor, keys=self.pages))
        if problems := _problems(self.pages):
            raise InvalidInput(problems)

    @property
    def stored(self) -> IndexFormat:
        """How keys are stored."""
        return INDEX_FORMATS[self.pages.shape[1]]

    @property
    def page_count(self) -> int:
        """Pages of the cache."""
        return int(self.pages.shape[0])

    @staticmethod
    @lasting
    def allocate(pages: int, device: torch.device | str, stored: IndexFormat = INDEX_FP8) -> IndexKeys:
        """Make the keys of `pages` pages; what is in them is undefined until it is written.

        Raises:
            InvalidInput: No page, or a device that is none.
            DeviceUnavailable: A GPU that is not here.
        """
        demand_kinds(each(int, pages=pages), each(IndexFormat, stored=stored))
        shape = (max(0, pages), stored.page_bytes)
        return IndexKeys(torch.empty(shape, dtype=torch.uint8, device=usable_device(device)))

    def values(self) -> Tensor:
        """Give the stored numbers as a view, `[page, key, 128]`, scales not applied."""
        width = PAGE_ROWS * INDEX_WIDTH * self.stored.dtype.itemsize
        numbers = self.pages[:, :width].view(self.stored.dtype)
        # A view keeps its bytes where they are, which reshaping must too: pages may be a pitch apart.
        return numbers.as_strided((self.page_count, PAGE_ROWS, INDEX_WIDTH), (numbers.stride(0), INDEX_WIDTH, 1))

    def scales(self) -> Tensor:
        """Give the scales of FP8 keys as a view, `f32 [page, key]`."""
        return self.pages[:, PAGE_ROWS * INDEX_WIDTH :].view(torch.float32)


def _problems(pages: Tensor) -> list[Problem]:
    known = ", ".join(f"{stored.page_bytes} ({stored.name})" for stored in INDEX_FORMATS.values())
    if pages.dim() != 2 or pages.shape[1] not in INDEX_FORMATS:
        rule = f"must be (pages, bytes of a page), where a page has one of {known} bytes"
        return [Problem("keys.shape", str(tuple(pages.shape)), rule, "pass one layer of the indexer cache")]
    problems = []
    if pages.dtype is not torch.uint8:
        problems.append(Problem("keys.dtype", str(pages.dtype), "must be torch.uint8", "view the pages as bytes"))
    if not 1 <= pages.shape[0] <= _MAX_PAGES:
        rule = f"must be 1 to {_MAX_PAGES} pages"
        problems.append(Problem("keys.shape", str(tuple(pages.shape)), rule, "page numbers have 32 bits"))
    if pages.stride(1) != 1 or pages.stride(0) < pages.shape[1]:
        rule = "must have the bytes of a page side by side and pages apart"
        problems.append(Problem("keys.stride", str(pages.stride()), rule, "pass a view of whole pages"))
    elif pages.stride(0) % CHUNK_BYTES or pages.data_ptr() % CHUNK_BYTES:
        rule = f"must start every page at a multiple of {CHUNK_BYTES} bytes"
        problems.append(Problem("keys.stride", str(pages.stride()), rule, "align the pages"))
    return problems
