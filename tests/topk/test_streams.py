"""Top-k streams: what is recorded is what is read, and damage is an error, never a wrong answer."""

from __future__ import annotations

import json
import os
import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hisparse_svc.errors import InvalidInput
from hisparse_svc.topk import NEWEST_TOKENS, Recorder, Stream
from hisparse_svc.topk import format as stored
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from pathlib import Path

TOP_K = 16


def small(path: Path, seed: int = 0, steps: int = 5) -> dict[tuple[str, int], list[list[int]]]:
    """Write a stream of requests that come and go; give what was told."""
    random = np.random.default_rng(seed)
    told: dict[tuple[str, int], list[list[int]]] = {}
    with Recorder(path, layers=[2, 5], top_k=TOP_K, model="m", source={"seed": seed}) as recorder:
        for step in range(steps):
            recorder.join(f"r{step}", tokens=100 * step + 3)
            for number in range(max(0, step - 2), step + 1):
                length = 100 * number + 3 + step - number + 1
                for layer in (2, 5):
                    picks = random.choice(length, min(length, int(random.integers(0, TOP_K + 1))), replace=False)
                    recorder.record(3 * step, layer, f"r{number}", [*picks.tolist(), -1])
                    told.setdefault((f"r{number}", layer), []).append(sorted(picks.tolist()))
    return told


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_what_is_recorded_is_read(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    path = tmp_path_factory.mktemp("s") / "a.topk"
    told = small(path, seed)
    stream = Stream(path)
    read = {(lane.request, lane.layer): [picks.tolist() for picks in lane.picks] for lane in stream.lanes()}
    assert read == told, f"seed {seed}"
    assert (stream.model, stream.top_k, stream.layers, stream.source) == ("m", TOP_K, [2, 5], {"seed": seed})
    assert stream.requests == [(f"r{step}", 100 * step + 3) for step in range(5)]
    assert [lane.steps for lane in stream.lanes([5])] == [[0, 3, 6], [3, 6, 9], [6, 9, 12], [9, 12], [12]]
    assert [lane.lengths for lane in stream.lanes([5])][1] == [104, 105, 106]


def test_every_changed_byte_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.topk"
    small(path)
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        try:
            Stream(path).lanes()
        except InvalidInput as wrong:
            assert wrong.problems[0].field == "FILE"
            continue
        pytest.fail(f"byte {at} was changed, and nobody noticed")


def test_every_cut_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.topk"
    small(path)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(InvalidInput, match=r"cut off|no top-k stream"):
            Stream(path)
    path.write_bytes(whole + b"x")
    with pytest.raises(InvalidInput, match="1 bytes behind its end"):
        Stream(path)


HEADER = {"model": "m", "top_k": 4, "layers": [0], "source": {}}
END = {"requests": [{"name": "a", "joined_tokens": 10}], "steps": 1}


def forged(path: Path, raw: bytes, header: object = HEADER, end: object = END) -> Path:
    """Write a file whose checksums are right."""
    blocks = [
        stored.pack(stored.HEADER, 0, json.dumps(header).encode()),
        stored.pack(stored.STEP, 0, raw),
        stored.pack(stored.END, 0, json.dumps(end).encode()),
    ]
    path.write_bytes(stored.MAGIC + b"".join(blocks))
    return path


def step_of(*records: tuple[int, int, int, list[int]]) -> bytes:
    table = b"".join(struct.pack("<4I", r, layer, length, len(gaps)) for r, layer, length, gaps in records)
    gaps = np.array([gap for *_, gaps in records for gap in gaps], dtype="<u4")
    return struct.pack("<I", len(records)) + table + gaps.view(np.uint8).reshape(-1, 4).T.tobytes()


FORGERIES = {
    "a record that is not there": (struct.pack("<I", 5), "a table of 5 records"),
    "an empty block": (b"", "a table of 0 records"),
    "picks that are not there": (step_of((0, 0, 10, [1]))[:-1], "3 bytes of picks where 4"),
    "a pick twice": (step_of((0, 0, 10, [1, 0])), "do not ascend"),
    "a pick beyond the length": (step_of((0, 0, 10, [3, 7])), "lie beyond the request's 10"),
    "a sum beyond 32 bits": (step_of((0, 0, 10, [2**32 - 1, 2**32 - 1])), "lie beyond"),
    "a layer beyond the list": (step_of((0, 1, 10, [1])), "a layer or a length out of range"),
    "a length beyond 31 bits": (step_of((0, 0, 2**31, [1])), "a layer or a length out of range"),
    "a record twice": (step_of((0, 0, 10, [1]), (0, 0, 10, [2])), "a request and layer twice"),
    "an unknown request": (step_of((1, 0, 10, [1])), "an unknown request"),
    "more picks than the top-k": (step_of((0, 0, 10, [1, 1, 1, 1, 1])), "too many picks"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_numbers_that_do_not_fit_together_are_an_error(tmp_path: Path, name: str) -> None:
    raw, words = FORGERIES[name]
    with pytest.raises(InvalidInput, match=words):
        list(Stream(forged(tmp_path / "a.topk", raw)).read())


def test_a_header_or_end_without_its_numbers_is_an_error(tmp_path: Path) -> None:
    good = step_of((0, 0, 10, [1]))
    for header, end in (
        ([], END),
        ({**HEADER, "top_k": -1}, END),
        ({**HEADER, "layers": [0.5]}, END),
        (HEADER, {"requests": END["requests"], "steps": 2}),
        (HEADER, {"requests": [3], "steps": 1}),
        (HEADER, {"requests": [{"name": "a", "joined_tokens": True}], "steps": 1}),
    ):
        with pytest.raises(InvalidInput, match=r"has (a header or )?an end|holds 1 steps"):
            Stream(forged(tmp_path / "a.topk", good, header, end))


def test_a_block_that_unpacks_to_more_than_it_says_takes_no_memory(tmp_path: Path) -> None:
    packed = zlib.compress(b"\0" * (64 << 20))
    numbers = (stored.HEADER, 0, len(packed), 100)
    block = stored.BLOCK.pack(*numbers, stored.checksum(*numbers, packed)) + packed
    end = stored.pack(stored.END, 0, json.dumps(END).encode())
    path = tmp_path / "a.topk"
    path.write_bytes(stored.MAGIC + block + end)
    with pytest.raises(InvalidInput, match="does not hold the 100 bytes it says"):
        Stream(path)
    path.write_bytes(stored.MAGIC + stored.BLOCK.pack(stored.STEP, 0, 1, 2**32 - 1, 0))
    with pytest.raises(InvalidInput, match="at most 268435456 are read"):
        Stream(path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 2, "b", [1]), "must be of a request that has joined"),
        ((0, 1, "a", [1]), "a layer of the stream"),
        ((0, 2, "a", [11]), "below the request's length, 11"),
        ((0, 2, "a", list(range(5))), "must be at most 4"),
    ],
)
def test_a_record_that_cannot_be_is_refused(tmp_path: Path, arguments: tuple[object, ...], words: str) -> None:
    def told() -> None:
        with Recorder(tmp_path / "a", layers=[2], top_k=4) as recorder:
            recorder.join("a", tokens=10)
            recorder.record(*arguments)  # type: ignore[arg-type]

    with pytest.raises(InvalidInput, match=words):
        told()
    assert list(tmp_path.iterdir()) == []


def test_a_lane_leaves_out_what_the_newest_page_serves(tmp_path: Path) -> None:
    path = tmp_path / "a.topk"
    with Recorder(path, layers=[0], top_k=4) as recorder:
        recorder.join("a", tokens=100)
        recorder.record(0, 0, "a", [99, 100])  # 99 came with the prompt: it is in host memory alone
        recorder.record(1, 0, "a", [99, 100], length=100 + NEWEST_TOKENS)
        recorder.record(2, 0, "a", [99, 100, 101])
    assert [picks.tolist() for picks in Stream(path).lanes()[0].older()] == [[99], [99], [99, 100]]


def test_a_stream_takes_the_place_of_no_pipe_and_no_folder(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for path in (tmp_path / "pipe", tmp_path / "link", tmp_path):
        with pytest.raises(InvalidInput, match=r"path is .*: is there, and is not a regular file"):
            Recorder(path, layers=[2], top_k=4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="not a regular file"):
        Stream(tmp_path)
    with pytest.raises(InvalidInput, match="cannot be read"):
        Stream(tmp_path / "none")
