"""A top-k stream as it is read: its header and end at once, its steps one at a time."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.files import printable
from hisparse_svc.topk import format as stored
from hisparse_svc.topk.lane import Lane, Picks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__all__ = ["MOST_LOADED_BYTES", "Stream"]

MOST_LOADED_BYTES = 4 << 30
"""Most memory that the lanes of a stream may take."""


@dataclass(frozen=True, slots=True)
class _Block:
    kind: int
    step: int
    offset: int
    packed_bytes: int
    raw_bytes: int
    crc: int


class Stream:
    """A stream in a file.

    Attributes:
        path: The file.
        file_bytes: Its size.
        model: What the model is called.
        top_k: Most picks of a request, layer and step.
        layers: The model's numbers of the layers.
        requests: Name and tokens before the first step of each request.
        source: How it was made.
        steps: Number of steps.
    """

    def __init__(self, path: str | os.PathLike[str], field: str = "FILE") -> None:
        """Read what it says of itself, and where its steps are.

        Args:
            path: The file.
            field: What the user calls it, for the error.

        Raises:
            InvalidInput: It cannot be read, is no stream, was cut off, or is damaged.
        """
        self.path = Path(path)
        self._field = field
        try:
            with self._open() as file:
                self.file_bytes = os.fstat(file.fileno()).st_size
                blocks = list(self._scan(file))
                header, end = self._document(file, blocks[0]), self._document(file, blocks[-1])
            self._blocks = blocks[1:-1]
            self.steps = len(self._blocks)
            self.model, self.source = str(header.get("model", "")), header.get("source", {})
            self.top_k = _whole(header, "top_k")
            self.layers = [int(layer) for layer in _numbers(header.get("layers"))]
            self.requests = _requests(end)
            if _whole(end, "steps") != self.steps:
                raise stored.Damaged(f"holds {self.steps} steps, and says {end['steps']}")
        except stored.Damaged as damage:
            raise self._wrong(damage) from None

    def read(self) -> Iterator[list[Picks]]:
        """Give the records of each step.

        Raises:
            InvalidInput: A step is damaged.
        """
        try:
            with self._open() as file:
                for block in self._blocks:
                    records = stored.decode_step(block.step, _content(file, block), len(self.layers))
                    if any(r.request >= len(self.requests) or len(r.tokens) > self.top_k for r in records):
                        raise stored.Damaged(f"has, in step {block.step}, an unknown request, or too many picks")
                    yield records
        except stored.Damaged as damage:
            raise self._wrong(damage) from None

    def lanes(self, layers: Collection[int] | None = None) -> list[Lane]:
        """Load the picks of some layers, or of all, by request and layer.

        Raises:
            InvalidInput: A layer that the stream has not, a damaged step, or more than the memory bound.
        """
        if layers is not None and (unknown := sorted(set(layers) - set(self.layers))):
            rule = f"is no layer of {printable(str(self.path))}"
            raise InvalidInput([Problem("layers", str(unknown[0]), rule, f"use some of {_some(self.layers)}")])
        found: dict[tuple[int, int], Lane] = {}
        loaded = 0
        for records in self.read():
            for record in records:
                layer = self.layers[record.layer]
                if layers is not None and layer not in layers:
                    continue
                name, joined = self.requests[record.request]
                lane = found.setdefault((record.request, record.layer), Lane(name, layer, joined))
                lane.steps.append(record.step)
                lane.lengths.append(record.length)
                lane.picks.append(record.tokens)
                loaded += record.tokens.nbytes
            if loaded > MOST_LOADED_BYTES:
                rule = f"takes more than {MOST_LOADED_BYTES} bytes of memory"
                raise InvalidInput([Problem(self._field, f'"{self.path}"', rule, "choose fewer of its layers")])
        return [found[key] for key in sorted(found)]

    def _open(self) -> BinaryIO:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError) as failure:
            reason = failure.strerror if isinstance(failure, OSError) else failure
            raise stored.Damaged(f"cannot be read ({reason})") from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise stored.Damaged("is not a regular file")
        return os.fdopen(descriptor, "rb")

    def _scan(self, file: BinaryIO) -> Iterator[_Block]:
        """Go from block to block to the end, without reading what is in them."""
        if file.read(len(stored.MAGIC)) != stored.MAGIC:
            raise stored.Damaged("is no top-k stream of version 1")
        expected, last = stored.HEADER, -1
        while True:
            head = file.read(stored.BLOCK.size)
            if len(head) < stored.BLOCK.size:
                raise stored.Damaged("was cut off: its end is missing")
            kind, step, packed_bytes, raw_bytes, crc = stored.BLOCK.unpack(head)
            stored.check_sizes(kind, packed_bytes, raw_bytes)
            if (kind == stored.HEADER) is not (expected == stored.HEADER) or (kind == stored.STEP and step <= last):
                raise stored.Damaged(f"has a block out of order, at byte {file.tell() - stored.BLOCK.size}")
            block = _Block(kind, step, file.tell(), packed_bytes, raw_bytes, crc)
            if file.seek(packed_bytes, os.SEEK_CUR) > self.file_bytes:
                raise stored.Damaged("was cut off: its end is missing")
            yield block
            if kind == stored.END:
                if file.tell() != self.file_bytes:
                    raise stored.Damaged(f"has {self.file_bytes - file.tell()} bytes behind its end")
                return
            expected, last = stored.STEP, step if kind == stored.STEP else -1

    @staticmethod
    def _document(file: BinaryIO, block: _Block) -> dict[str, Any]:
        return stored.read_json(_content(file, block))

    def _wrong(self, damage: stored.Damaged) -> InvalidInput:
        path = f'"{printable(str(self.path))}"'
        return InvalidInput([Problem(self._field, path, str(damage), "make it again with `hisparse-svc trace-topk`")])


def _content(file: BinaryIO, block: _Block) -> bytes:
    file.seek(block.offset)
    packed = file.read(block.packed_bytes)
    if stored.checksum(block.kind, block.step, block.packed_bytes, block.raw_bytes, packed) != block.crc:
        raise stored.Damaged("has a block whose checksum is wrong")
    return stored.unpack(packed, block.raw_bytes)


def _whole(document: dict[str, Any], name: str) -> int:
    (number,) = _numbers([document.get(name)])
    return number


def _numbers(found: Any) -> list[int]:
    if not isinstance(found, list) or any(type(n) is not int or not 0 <= n <= stored.MOST_TOKENS for n in found):
        raise stored.Damaged("has a header or an end without its numbers")
    return found


def _requests(end: dict[str, Any]) -> list[tuple[str, int]]:
    found = end.get("requests")
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise stored.Damaged("has an end without its requests")
    return [(str(one.get("name")), _whole(one, "joined_tokens")) for one in found]


def _some(layers: list[int]) -> str:
    shown = ", ".join(map(str, layers[:8]))
    return shown if len(layers) <= 8 else f"{shown} and {len(layers) - 8} more"
