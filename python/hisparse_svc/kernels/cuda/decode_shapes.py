"""Blocks of the sparse MLA decode kernels, and how many share a query: tuned once on an H200, kept here as a table.

::

    heads of a call ──► kernel and heads of a block ──► items = queries × blocks of heads ──► splits of an item

An item is one query with one block's heads. Its tiles are split over a cluster of `splits` blocks, so that few items
fill the GPU; each block takes a whole SM. `benches/decode.py --sweep` measures every choice.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BlockShape", "block_shape", "block_shapes", "splits_for"]

_WARP = 32


@dataclass(frozen=True)
class BlockShape:
    """A block of one of the kernels.

    Attributes:
        source: Its file; the kernel has the same name.
        rows: Row format.
        heads: Heads of a block.
        constants: What is defined for it beside `SPLITS`, `HEADS` and `ROW_BYTES`.
        threads: Threads of a block.
        tuned: (items, splits): up to so many items, split each so often; one more line starts where the last ends.
    """

    source: str
    rows: str
    heads: int
    constants: tuple[tuple[str, int], ...]
    threads: int
    tuned: tuple[tuple[int, int], ...]

    @property
    def kernel(self) -> str:
        """Name of the kernel."""
        return self.source.removesuffix(".cu")


def _few(
    rows: str, heads: int, *, stages: int, groups: int, registers: tuple[int, int], tuned: tuple[tuple[int, int], ...]
) -> BlockShape:
    producers = 4
    constants = (
        ("STAGES", stages),
        ("GROUPS", groups),
        ("PRODUCERS", producers),
        ("CONSUMER_REGISTERS", registers[0]),
        ("PRODUCER_REGISTERS", registers[1]),
    )
    return BlockShape("decode_few.cu", rows, heads, constants, (4 * groups + producers) * _WARP, tuned)


_TUNED_FEW = ((4, 16), (8, 8), (11, 8), (16, 6), (22, 5), (32, 3), (66, 2))

_SHAPES = (
    # Registers: what the launch bound leaves where (0, 0); sixteen heads need more than the 128 of 512 threads.
    _few("fp8", 8, stages=6, groups=3, registers=(0, 0), tuned=_TUNED_FEW),
    _few("fp8", 16, stages=6, groups=3, registers=(160, 32), tuned=_TUNED_FEW),
    # Rows of 1152 bytes: four tiles are what shared memory holds.
    _few("bf16", 8, stages=4, groups=2, registers=(0, 0), tuned=_TUNED_FEW),
    _few("bf16", 16, stages=4, groups=2, registers=(0, 0), tuned=_TUNED_FEW),
)


def block_shapes(rows: str) -> list[BlockShape]:
    """Give the blocks for a row format, by heads."""
    return [shape for shape in _SHAPES if shape.rows == rows]


def block_shape(rows: str, heads: int) -> BlockShape:
    """Choose the block for a call: the smallest that holds all heads, else the largest."""
    shapes = block_shapes(rows)
    return next((shape for shape in shapes if shape.heads >= heads), shapes[-1])


def splits_for(shape: BlockShape, items: int, sms: int) -> int:
    """Choose the splits of each item.

    The tuned number where all its blocks run at once; else the one whose waves of blocks end first.

    Args:
        shape: The block.
        items: Queries times blocks of heads.
        sms: SMs to use.
    """
    tuned = next((splits for most, splits in shape.tuned if items <= most), 1)
    if items * tuned <= sms:
        return tuned
    choices = sorted({splits for _, splits in shape.tuned if splits <= sms} | {1})

    def cost(splits: int) -> float:
        waves = -(-items * splits // sms)
        return waves * (1 / splits + _FIXED_SHARE)

    return min(choices, key=cost)


_FIXED_SHARE = 0.1
"""Time of a block that splitting does not shorten, as a share of a whole item's: start, first rows, merge."""
