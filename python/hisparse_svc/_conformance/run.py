"""A subject beside a plain model: every step is compared in full.

The model knows, of each seat, which token is in which row and in which step it was last used. After a step it demands:

::

    every pick   -1 stays -1, and what is no token of the request becomes -1; any other pick has a row of its token's
                 bytes, in every layer; one token has one row, one row has one token
    hits         keep their row
    misses       exactly the picked tokens that were not hot, each listed once, each in the row its picks name
    victims      not picked in this step; none while a row is free; none younger than a token that stays (exact LRU)
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from hisparse_svc._conformance.contents import row_contents
from hisparse_svc._conformance.subject import POISON, Shape, Subject
from hisparse_svc.kernels import PAGE_ROWS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["NonConforming", "Run"]


class NonConforming(AssertionError):
    """A subject that breaks a rule; the text says which, where, and how to replay it."""


@dataclass
class _Seated:
    """The model of one seat."""

    request: int
    pages: list[int]
    length: int
    newest_from: int
    row_of: dict[int, int] = field(default_factory=dict)
    used_in: dict[int, int] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)

    def newest_start(self, newest_tokens: int) -> int:
        return max(self.length - newest_tokens, self.newest_from)


class Run:
    """One scenario: drives a subject, models it, compares.

    Attributes:
        shape: Shape of the subject.
        random: The scenario's only source of chance.
    """

    def __init__(self, name: str, subject: Subject, shape: Shape, seed: int, *, exact_lru: bool = True) -> None:
        self.shape = shape
        self.random = random.Random(f"{name} {seed}")  # noqa: S311 - test data
        self._name, self._seed, self._exact_lru = name, seed, exact_lru
        self._subject = subject
        self._seated: dict[int, _Seated] = {}
        self._free_pages = list(range(shape.host_pages))
        self.random.shuffle(self._free_pages)
        self._requests = 0
        self._step = 0

    def length(self, seat: int) -> int:
        """Tokens of the request on this seat."""
        return self._seated[seat].length

    def admit(self, seat: int, length: int, room: int = 0, pages: Sequence[int] = ()) -> None:
        """Seat a new request with `length` tokens in host memory and room for more."""
        if seat in self._seated:
            self.finish(seat)
        needed = -(-(length + room) // PAGE_ROWS)
        taken = list(pages) or [self._free_pages.pop() for _ in range(needed)]
        self._requests += 1
        self._seated[seat] = seated = _Seated(self._requests, taken, length, length)
        host = self._subject.host
        for index, start in enumerate(range(0, length, PAGE_ROWS)):
            tokens = torch.arange(start, min(start + PAGE_ROWS, length))
            host[taken[index], : len(tokens)] = self._contents(seated, tokens)
        self._subject.take_seat(seat, taken, length)

    def finish(self, seat: int) -> None:
        """End the request of this seat."""
        self._free_pages[:0] = self._seated.pop(seat).pages
        self._subject.release_seat(seat)

    def append(self, seats: Sequence[int], tokens: int = 1) -> None:
        """Add tokens to the requests; -1 is a padded one."""
        rows = torch.zeros((len(seats), tokens, self.shape.layers, self.shape.row_bytes), dtype=torch.uint8)
        for index, seat in enumerate(seats):
            if seat >= 0:
                seated = self._seated[seat]
                new = range(seated.length, seated.length + tokens)
                for token in new:
                    seated.versions[token] = seated.versions.get(token, -1) + 1
                rows[index] = self._contents(seated, torch.tensor(new))
                seated.length += tokens
        self._subject.append(seats, rows)

    def refuse(self, seats: Sequence[int], tokens: int) -> None:
        """Take back the last tokens of the requests."""
        for seat in seats:
            if seat >= 0:
                self._seated[seat].length -= tokens
        self._subject.refuse(seats, tokens)

    def step(self, seats: Sequence[int], picks: Sequence[Sequence[Sequence[int]]]) -> None:
        """Let the subject resolve `picks[request][query row]`, shorter rows filled with -1, and compare."""
        self._step += 1
        filled = torch.full((len(seats), self.shape.query_rows, self.shape.top_k), -1, dtype=torch.int64)
        for request, query_rows in enumerate(picks):
            for query_row, tokens in enumerate(query_rows):
                filled[request, query_row, : len(tokens)] = torch.tensor(list(tokens), dtype=torch.int64)
        done = self._subject.step(seats, filled, POISON)
        self._demand(tuple(done.rows.shape) == tuple(filled.shape), "rows have the shape of the picks", seats)
        owners: dict[int, tuple[int, int]] = {}
        for request, seat in enumerate(seats):
            flat, rows = filled[request].flatten().tolist(), done.rows[request].flatten().tolist()
            if seat < 0:
                self._demand(set(rows) == {-1}, "a padded request gets -1 everywhere", (request, rows[:4]))
                self._demand(not done.misses[request], "a padded request misses nothing", done.misses[request][:4])
            else:
                self._compare(seat, flat, rows, done.misses[request], owners)

    def check_host(self, seat: int) -> None:
        """Compare every host row of a request with what was written."""
        seated, host = self._seated[seat], self._subject.host
        for index, start in enumerate(range(0, seated.length, PAGE_ROWS)):
            tokens = torch.arange(start, min(start + PAGE_ROWS, seated.length))
            same = bool((host[seated.pages[index], : len(tokens)] == self._contents(seated, tokens)).all())
            self._demand(same, "every row is backed up", f"tokens {start}… of seat {seat}")

    def _compare(
        self,
        seat: int,
        picks: list[int],
        rows: list[int],
        misses: list[tuple[int, int]],
        owners: dict[int, tuple[int, int]],
    ) -> None:
        seated = self._seated[seat]
        row_of: dict[int, int] = {}
        for index, (token, row) in enumerate(zip(picks, rows, strict=True)):
            if not 0 <= token < seated.length:
                self._demand(row == -1, "what is no token of the request gets -1", (index, token, row))
                continue
            self._demand(row >= 0, "every token of the request gets a row", (index, token, row))
            self._demand(row_of.setdefault(token, row) == row, "a token has one row", (token, row_of[token], row))
            owner = owners.setdefault(row, (seat, token))
            self._demand(owner == (seat, token), "a row has one token", (row, owner, (seat, token)))
        newest = {token for token in row_of if token >= seated.newest_start(self._subject.newest_tokens)}
        wanted = row_of.keys() - newest
        hits = wanted & seated.row_of.keys()
        missing = wanted - hits
        for token in hits:
            self._demand(row_of[token] == seated.row_of[token], "a hit keeps its row", (token, row_of[token]))
        self._demand(
            sorted(token for token, _ in misses) == sorted(missing),
            "misses are what was not hot, once each",
            (len(misses), len(missing), sorted({token for token, _ in misses} ^ missing)[:8]),
        )
        for token, row in misses:
            self._demand(row_of[token] == row, "a miss is fetched to the row its picks name", (token, row))
        self._victims(seated, missing, wanted, row_of)
        for token in missing:
            seated.row_of[token] = row_of[token]
        for token in wanted:
            seated.used_in[token] = self._step
        if row_of:
            tokens = list(row_of)
            held = self._subject.hot_rows(torch.tensor([row_of[token] for token in tokens]))
            right = (held == self._contents(seated, torch.tensor(tokens))).flatten(1).all(1).tolist()
            wrong = [(token, row_of[token], token in hits) for token, ok in zip(tokens, right, strict=True) if not ok]
            self._demand(not wrong, "a row holds its token's bytes in every layer (token, row, was hot)", wrong[:8])

    def _victims(self, seated: _Seated, missing: set[int], wanted: set[int], row_of: dict[int, int]) -> None:
        holder = {row: token for token, row in seated.row_of.items()}
        victims = {holder[row_of[token]] for token in missing if row_of[token] in holder}
        self._demand(not victims & wanted, "a picked token is never evicted in its own step", sorted(victims & wanted))
        free = self.shape.hot_rows - len(seated.row_of)
        needed = max(0, len(missing) - free)
        self._demand(len(victims) == needed, "nothing is evicted while a row is free", (len(victims), needed))
        staying = seated.row_of.keys() - victims - wanted
        if self._exact_lru and victims and staying:
            youngest, oldest = max(victims, key=seated.used_in.get), min(staying, key=seated.used_in.get)  # type: ignore[arg-type]
            fair = seated.used_in[youngest] <= seated.used_in[oldest]
            self._demand(fair, "the least recently used goes first (evicted, kept)", (youngest, oldest))
        for token in victims:
            del seated.row_of[token], seated.used_in[token]

    def _contents(self, seated: _Seated, tokens: Tensor) -> Tensor:
        versions = torch.tensor([seated.versions.get(int(token), 0) for token in tokens])
        return row_contents(seated.request, tokens, versions, self.shape.layers, self.shape.row_bytes)

    def _demand(self, holds: bool, rule: str, found: object) -> None:
        if not holds:
            where = f"check {self._name}, seed {self._seed}, step {self._step}, {self.shape}"
            raise NonConforming(f"{rule}: {found}\nreplay: {where}")
