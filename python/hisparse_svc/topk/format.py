r"""The bytes of a top-k stream, little-endian throughout.

::

    "HSTOPK1\n"   block: header (JSON)   block: step   block: step   …   block: end (JSON)

    block    kind u32 │ step u32 │ packed bytes u32 │ raw bytes u32 │ CRC-32 of all of the block u32 │ packed (zlib)
    header   {"model", "top_k", "layers": [numbers], "source": {…}}
    step     records u32, then of each record request u32 │ layer, as index of the header's list u32 │ length u32
             │ picks u32, then the picks of all records, ascending, each as its distance from the one before (the
             first: from 0): u32, as four planes of bytes, lowest first, which lets zlib make one byte of most of them
    end      {"requests": [{"name", "joined_tokens"}], "steps": blocks of steps}

Picks are a set: their order is not kept, -1 and repetitions are dropped. `length` is the request's tokens in that step,
the one just written included. A file without its end was cut off; one with a wrong CRC is damaged. Either is an error,
as is any number out of the bounds below, before memory is taken for it.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from hisparse_svc.topk.lane import Picks

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BLOCK",
    "END",
    "HEADER",
    "MAGIC",
    "STEP",
    "Damaged",
    "checksum",
    "decode_step",
    "encode_step",
    "pack",
    "unpack",
]

MAGIC = b"HSTOPK1\n"
BLOCK = struct.Struct("<5I")
HEADER, STEP, END = 1, 2, 3

MOST_RAW_BYTES = 1 << 28
"""Largest block, unpacked: 128 requests of 78 layers and 2,048 picks are 82 MB."""

MOST_JSON_BYTES = 1 << 22
"""Largest header or end."""

MOST_TOKENS = (1 << 31) - 1
"""Longest request, and largest token."""

ZLIB_LEVEL = 6


class Damaged(Exception):
    """The bytes are no stream; the text says where and how."""


def pack(kind: int, step: int, raw: bytes) -> bytes:
    """Give one block."""
    packed = zlib.compress(raw, ZLIB_LEVEL)
    numbers = (kind, step, len(packed), len(raw))
    return BLOCK.pack(*numbers, checksum(*numbers, packed)) + packed


def checksum(kind: int, step: int, packed_bytes: int, raw_bytes: int, packed: bytes) -> int:
    """Give the CRC of a block."""
    return zlib.crc32(packed, zlib.crc32(struct.pack("<4I", kind, step, packed_bytes, raw_bytes)))


def check_sizes(kind: int, packed_bytes: int, raw_bytes: int) -> None:
    """Refuse sizes that no writer makes."""
    most = MOST_RAW_BYTES if kind == STEP else MOST_JSON_BYTES
    if kind not in (HEADER, STEP, END):
        raise Damaged(f"has a block of unknown kind {kind}")
    if raw_bytes > most or packed_bytes > most + most // 1000 + 64:
        raise Damaged(f"has a block of {max(raw_bytes, packed_bytes)} bytes: at most {most} are read")


def unpack(packed: bytes, raw_bytes: int) -> bytes:
    """Give the content of a block whose sizes and checksum were checked."""
    inflating = zlib.decompressobj()
    try:
        raw = inflating.decompress(packed, raw_bytes + 1)
    except zlib.error as failure:
        raise Damaged(f"has a block that zlib cannot read ({failure})") from None
    if len(raw) != raw_bytes or not inflating.eof:
        raise Damaged(f"has a block that does not hold the {raw_bytes} bytes it says")
    return raw


def read_json(raw: bytes) -> dict[str, Any]:
    """Give the document of a header or an end."""
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Damaged("has a header or an end that is no JSON object")
    return found


def encode_step(records: Sequence[Picks]) -> bytes:
    """Give the content of a step's block."""
    table = np.array([[r.request, r.layer, r.length, len(r.tokens)] for r in records], dtype="<u4")
    gaps = np.concatenate([np.diff(r.tokens.astype(np.int64), prepend=0) for r in records]).astype("<u4")
    planes = gaps.view(np.uint8).reshape(-1, 4).T
    return struct.pack("<I", len(records)) + table.tobytes() + planes.tobytes()


def decode_step(step: int, raw: bytes, layers: int) -> list[Picks]:
    """Read the content of a step's block.

    Raises:
        Damaged: Its numbers do not fit together.
    """
    where = f"has, in step {step},"
    records = struct.unpack_from("<I", raw)[0] if len(raw) >= 4 else 0
    table_end = 4 + records * 16
    if not records or table_end > len(raw):
        raise Damaged(f"{where} a table of {records} records that is not there")
    table = np.frombuffer(raw, "<u4", records * 4, 4).reshape(records, 4).astype(np.int64)
    total = int(table[:, 3].sum())
    if len(raw) != table_end + total * 4:
        raise Damaged(f"{where} {len(raw) - table_end} bytes of picks where {total * 4} are needed")
    if (table[:, 1] >= layers).any() or (table[:, 2] > MOST_TOKENS).any():
        raise Damaged(f"{where} a layer or a length out of range")
    if len(np.unique(table[:, :2], axis=0)) != records:
        raise Damaged(f"{where} a request and layer twice")
    gaps = np.frombuffer(raw, np.uint8, total * 4, table_end).reshape(4, total).T.copy().view("<u4")[:, 0]
    found, at = [], 0
    for request, layer, length, count in table.tolist():
        own = gaps[at : at + count].astype(np.int64)
        tokens = np.cumsum(own)
        if count and ((own[1:] < 1).any() or tokens[-1] >= length):
            raise Damaged(f"{where} picks that do not ascend, or lie beyond the request's {length} tokens")
        found.append(Picks(step, request, layer, length, tokens.astype(np.int32)))
        at += count
    return found
