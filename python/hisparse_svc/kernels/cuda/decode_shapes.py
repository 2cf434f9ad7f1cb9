"""Blocks of the sparse MLA decode kernels, and the choice of one and of how many share a query.

::

    heads of a call ──► shape ──► items = queries × blocks of its heads ──► splits of an item

An item is one query with the heads of one block. Its tiles are split over a cluster of `splits` blocks, so that few
items fill the GPU; each block has an SM to itself. `decode_table` says which choice was fastest where.
"""

from __future__ import annotations

from dataclasses import dataclass

from hisparse_svc.kernels.cuda.decode_table import TUNED

__all__ = ["SPLITS", "BlockShape", "block_shapes", "choose"]

SPLITS = (1, 2, 3, 4, 5, 6, 8, 16)
"""Shares that an item may be split into: sizes of a cluster."""

_WARP = 32
_FIXED_SHARE = 0.1
"""Time of a block that splitting does not shorten, as a share of a whole item's: start, first rows, merge."""


@dataclass(frozen=True)
class BlockShape:
    """A block of one of the kernels.

    Attributes:
        source: Its file; the kernel has the same name.
        rows: Row format.
        heads: Heads of a block.
        constants: What is defined for it beside `SPLITS`, `HEADS` and `ROW_BYTES`.
        threads: Threads of a block.
        splits: Splits that its shared memory has room for.
    """

    source: str
    rows: str
    heads: int
    constants: tuple[tuple[str, int], ...]
    threads: int
    splits: tuple[int, ...] = SPLITS

    def blocks(self, heads: int, splits: int) -> int:
        """Blocks of one query of so many heads."""
        return -(-heads // self.heads) * splits

    @property
    def kernel(self) -> str:
        """Name of the kernel."""
        return self.source.removesuffix(".cu")


def _few(rows: str, heads: int, *, stages: int, groups: int, registers: tuple[int, int] = (0, 0)) -> BlockShape:
    producers = 4
    constants = (
        ("STAGES", stages),
        ("GROUPS", groups),
        ("PRODUCERS", producers),
        ("CONSUMER_REGISTERS", registers[0]),
        ("PRODUCER_REGISTERS", registers[1]),
    )
    return BlockShape("decode_few.cu", rows, heads, constants, (4 * groups + producers) * _WARP)


def _many(rows: str, heads: int, *, units: int, scorers: int) -> BlockShape:
    # Registers of each warpgroup: scorers + 2 × values + producers is what the threads start with, 4 × 128 or 5 × 96.
    score, value = (120, 184) if scorers == 1 else (96, 128)
    constants = (
        ("UNITS", units),
        ("SCORERS", scorers),
        ("SCORE_REGISTERS", score),
        ("VALUE_REGISTERS", value),
        ("PRODUCER_REGISTERS", 24),
    )
    return BlockShape("decode_many.cu", rows, heads, constants, (scorers + 3) * 4 * _WARP)


def _wide(rows: str) -> BlockShape:
    constants = (
        ("TILE", 48),
        ("BUFFERS", 3),
        ("HELD_BLOCKS", 2),  # else shared memory would hold two tiles
        ("SCORE_REGISTERS", 120),
        ("VALUE_REGISTERS", 176),
        ("PRODUCER_REGISTERS", 40),
    )
    return BlockShape("decode_wide.cu", rows, 64, constants, 512, tuple(splits for splits in SPLITS if splits <= 4))


_SHAPES = {
    (shape.rows, shape.heads): shape
    for shape in (
        _few("fp8", 8, stages=6, groups=3),
        _few("fp8", 16, stages=6, groups=3, registers=(160, 32)),  # more than the 128 that 512 threads have each
        _many("fp8", 32, units=8, scorers=2),
        _many("fp8", 64, units=6, scorers=1),  # their sums leave no registers for a second scorer
        # Rows of 1152 bytes: four tiles are what shared memory holds.
        _few("bf16", 8, stages=4, groups=2),
        _few("bf16", 16, stages=4, groups=2),
        _many("bf16", 32, units=4, scorers=1),
        # 64 heads of the above would leave room for three units, and a tile is two.
        _wide("bf16"),
    )
}


def block_shapes(rows: str) -> list[BlockShape]:
    """Give the blocks for a row format, by heads."""
    return [shape for shape in _SHAPES.values() if shape.rows == rows]


def choose(rows: str, heads: int, queries: int, sms: int) -> tuple[BlockShape, int]:
    """Choose the block and the splits of each item.

    The table's line where all its blocks run at once on the SMs given; else the number of splits whose waves of blocks
    end first.

    Args:
        rows: Row format.
        heads: Heads of the call.
        queries: Its queries.
        sms: SMs to use.
    """
    column = next(column for most, column in TUNED[rows].items() if heads <= most)
    for most, block_heads, splits in column:
        shape = _SHAPES[rows, block_heads]
        if queries <= most and queries * shape.blocks(heads, splits) <= sms:
            return shape, splits
    shape = _SHAPES[rows, column[-1][1]]

    def cost(splits: int) -> float:
        waves = -(-queries * shape.blocks(heads, splits) // sms)
        return waves * (1 / splits + _FIXED_SHARE)

    return shape, min((splits for splits in shape.splits if splits <= sms), key=cost)
