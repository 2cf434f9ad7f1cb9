"""A top-k stream as it is made: an engine, or a generator, tells the picks of each step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.topk import format as stored
from hisparse_svc.topk.lane import Picks

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

__all__ = ["Recorder"]


class Recorder:
    """Writes a stream. The file appears, whole, when it is closed; a run that fails leaves nothing.

    Example:
        >>> import tempfile
        >>> from hisparse_svc.topk import Recorder, Stream
        >>> path = tempfile.mkdtemp() + "/tiny.topk"
        >>> with Recorder(path, layers=[0, 3], top_k=4, model="tiny") as recorder:
        ...     recorder.join("a", tokens=9)
        ...     recorder.record(0, 3, "a", [7, 2, -1, 9])
        >>> [lane.picks[0].tolist() for lane in Stream(path).lanes()]
        [[2, 7, 9]]
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        layers: Sequence[int],
        top_k: int,
        model: str = "",
        source: Mapping[str, Any] | None = None,
    ) -> None:
        """Open it.

        Args:
            path: The file; one that exists is replaced at the end.
            layers: The model's numbers of the layers that have an index.
            top_k: Most picks of a request, layer and step.
            model: What the model is called.
            source: How the stream was made, as plain data: kept as it is.

        Raises:
            InvalidInput: There is a device, a pipe or a folder, which a file would take the place of.
        """
        self.path = Path(path)
        if self.path.exists() and not self.path.is_file():
            raise _wrong("path", f'"{path}"', "is there, and is not a regular file", "name another file")
        self.top_k = top_k
        self._layers = {layer: index for index, layer in enumerate(layers)}
        self._requests: dict[str, int] = {}
        self._joined: list[int] = []
        self._lengths: list[int] = []
        self._seen: list[int] = []
        self._step = -1
        self._records: dict[tuple[int, int], Picks] = {}
        self._blocks = 0
        self._partial = self.path.with_name(self.path.name + ".part")
        self._file = self._partial.open("wb")
        header = {"model": model, "top_k": top_k, "layers": list(layers), "source": dict(source or {})}
        self._file.write(stored.MAGIC + stored.pack(stored.HEADER, 0, json.dumps(header).encode()))

    def join(self, request: str, tokens: int) -> None:
        """Say that a request, which has so many tokens before its first step, takes part."""
        if request in self._requests:
            raise _wrong("request", request, "has joined already", "give each request a name of its own")
        self._requests[request] = len(self._joined)
        self._joined.append(tokens)
        self._lengths.append(tokens)
        self._seen.append(-1)

    def record(self, step: int, layer: int, request: str, picks: Any, length: int | None = None) -> None:
        """Add what a request picked in one layer of a step.

        Args:
            step: The step; never a smaller one than before.
            layer: The model's number of the layer.
            request: A request that has joined.
            picks: Tokens, in any order and shape; -1 says none. A list, an array or a tensor in CPU memory.
            length: Tokens of the request in this step. None: one more than in its step before.

        Raises:
            InvalidInput: A request or layer that is not of the stream, one told twice, a step that is over, more
                picks than the top-k, or a pick beyond the request's length.
        """
        if request not in self._requests or layer not in self._layers or not self._step <= step < 1 << 32:
            rule = f"must be of a request that has joined, a layer of the stream, and a step from {self._step}"
            raise _wrong(
                "record", f"{request}, layer {layer}, step {step}", rule, "call join first, and steps in order"
            )
        if step > self._step:
            self._flush()
            self._step = step
        number, index = self._requests[request], self._layers[layer]
        if self._seen[number] < step:
            self._seen[number] = step
            self._lengths[number] += 1
        if length is not None:
            self._lengths[number] = length
        length = self._lengths[number]
        tokens = np.unique(np.asarray(picks).astype(np.int64).ravel())
        tokens = tokens[tokens >= 0].astype(np.int32)
        if len(tokens) > self.top_k or (len(tokens) and tokens[-1] >= length) or length > stored.MOST_TOKENS:
            rule = f"must be at most {self.top_k}, all of them below the request's length, {length}"
            last = tokens[-1] if len(tokens) else "none"
            raise _wrong("picks", f"{len(tokens)}, the last {last}", rule, "record before the next token is added")
        if (number, index) in self._records:
            raise _wrong("record", f"{request}, layer {layer}", f"was told in step {step} already", "tell it once")
        self._records[number, index] = Picks(step, number, index, length, tokens)

    def close(self) -> None:
        """Write the end, and put the file in its place."""
        if self._file.closed:
            return
        self._flush()
        requests = [
            {"name": name, "joined_tokens": tokens} for name, tokens in zip(self._requests, self._joined, strict=True)
        ]
        end = json.dumps({"requests": requests, "steps": self._blocks}).encode()
        self._file.write(stored.pack(stored.END, 0, end))
        self._file.close()
        self._partial.replace(self.path)

    def __enter__(self) -> Self:
        """Give itself."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Close it, or leave nothing after a failure."""
        if kind is None:
            self.close()
        else:
            self._file.close()
            self._partial.unlink(missing_ok=True)

    def _flush(self) -> None:
        if self._records:
            raw = stored.encode_step(list(self._records.values()))
            if len(raw) > stored.MOST_RAW_BYTES:
                rule = f"must be at most {stored.MOST_RAW_BYTES} bytes"
                raise _wrong("step", f"{len(raw)} bytes", rule, "record fewer layers or requests")
            self._file.write(stored.pack(stored.STEP, self._step, raw))
            self._blocks += 1
            self._records = {}


def _wrong(field: str, value: str, rule: str, remedy: str) -> InvalidInput:
    return InvalidInput([Problem(field, value, rule, remedy)])
