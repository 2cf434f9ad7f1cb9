"""Formats of rows that the swap-in moves. It never looks inside one: `hisparse-core::layout` says what is in it."""

from __future__ import annotations

from dataclasses import dataclass

from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kernels.host_rows import CHUNK_BYTES
from hisparse_svc.kernels.kinds import demand_kinds, each

__all__ = ["MLA_BF16", "MLA_F32", "MLA_FP8", "RowFormat"]


@dataclass(frozen=True)
class RowFormat:
    """How one row of one layer is stored.

    Attributes:
        name: Name of the layout.
        row_bytes: Bytes of one row.
        align_bytes: Rows start at multiples of this: 16 packs a row of any MLA format; 64 and 128 pad it.

    Raises:
        InvalidInput: Bytes or alignment that kernels cannot move.
    """

    name: str
    row_bytes: int
    align_bytes: int = CHUNK_BYTES

    def __post_init__(self) -> None:
        demand_kinds(each(str, name=self.name), each(int, row_bytes=self.row_bytes, align_bytes=self.align_bytes))
        problems = []
        if self.row_bytes < 1 or self.row_bytes % CHUNK_BYTES:
            rule = f"must be a multiple of {CHUNK_BYTES}"
            problems.append(Problem("row_bytes", str(self.row_bytes), rule, "pad the row"))
        if self.align_bytes not in (CHUNK_BYTES, 64, 128):
            problems.append(Problem("align_bytes", str(self.align_bytes), "must be 16, 64 or 128", "use 64"))
        if problems:
            raise InvalidInput(problems)

    @property
    def stride_bytes(self) -> int:
        """Bytes from one row to the next."""
        return -(-self.row_bytes // self.align_bytes) * self.align_bytes

    def aligned(self, align_bytes: int) -> RowFormat:
        """Give the same rows at another alignment."""
        return RowFormat(self.name, self.row_bytes, align_bytes)


MLA_BF16 = RowFormat("mla_bf16", 1152)
"""576 BF16 values."""

MLA_FP8 = RowFormat("mla_fp8", 656)
"""512 e4m3 values, 4 fp32 scales, 64 BF16 values."""

MLA_F32 = RowFormat("mla_f32", 2304)
"""576 fp32 values: for tests, where arithmetic shall be exact."""
