"""Shape of a hot cache, and the words that are its state.

::

    hot rows of one seat, in one layer          slots 0 … hot_rows-1: any tokens, least recently used go first
    [ 0 │ 1 │ 2 │ … │ hot_rows-1 ║ page ]       the page behind them: the newest tokens, token t at t mod 64

    state of one seat, in one group of layers   the hot slots from least to most recently used, one word each
    [ slot│token ][ slot│token ] …              word = slot << token_bits | token;  all ones in token: empty slot

A word has 32 bits where slot and token fit, else 64. There is no map, stamp or counter beside the words: the order is
the recency, and who is where is read off them.

A token is served from the newest page, never from the hot slots, while it is among the last `NEWEST_TOKENS` and was
written there. The page has `MAX_QUERY_ROWS` rows more than that, so drafts that were written and then refused have
overwritten only tokens that were out of the window anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from hisparse_svc.errors import InvalidInput, Problem

__all__ = ["EMPTY_PAGE", "MAX_BATCH", "MAX_HOT_ROWS", "MAX_QUERY_ROWS", "NEWEST_TOKENS", "PAGE_ROWS", "Geometry"]

PAGE_ROWS = 64
"""Rows of one page, and so of the newest page (`limits.rs`: PAGE_TOKENS)."""

MAX_HOT_ROWS = 32_768
"""Most hot rows of a seat (`limits.rs`: MAX_HOT_ROWS)."""

MAX_QUERY_ROWS = 8
"""Most rows of one request that a step resolves together: one, and seven speculative ones."""

NEWEST_TOKENS = PAGE_ROWS - MAX_QUERY_ROWS
"""Tokens behind the end of a request that the newest page can serve."""

MAX_BATCH = 1024
"""Most requests of one call: the gather keeps a prefix of their miss counts in shared memory."""

EMPTY_PAGE = -1
"""Where a page map has no host page."""

_WORD_BITS = 32
_WIDE_BITS = 64
_MAX_ROW_INDEX = 2**31 - 1


@dataclass(frozen=True)
class Geometry:
    """Shape of a hot cache: how many seats, rows and picks, and how long a request may be.

    Attributes:
        seats: Requests that have hot rows at once.
        hot_rows: Rows of one seat that any token may take, in each layer.
        top_k: Tokens that the indexer picks for one query row.
        query_rows: Query rows of one request in one step: 1, and one more per speculative token.
        context_tokens: Longest request, in tokens.

    Raises:
        InvalidInput: With every rule that a number breaks.
    """

    seats: int
    hot_rows: int
    top_k: int
    query_rows: int = 1
    context_tokens: int = 65_536

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise InvalidInput(problems)

    @property
    def padded_rows(self) -> int:
        """Rows of one seat, the newest page included."""
        return self.hot_rows + PAGE_ROWS

    @property
    def picks(self) -> int:
        """Picks of one request in one step, which bounds its misses."""
        return self.top_k * self.query_rows

    @property
    def map_pages(self) -> int:
        """Host pages of the longest request."""
        return -(-self.context_tokens // PAGE_ROWS)

    @cached_property
    def word_bits(self) -> int:
        """Bits of one word: 32 where slot and token fit, else 64."""
        # The last token of the longest request is appended, so it is in the newest page: its number may mean "empty".
        fits = self.context_tokens <= 1 << (_WORD_BITS - self._slot_bits)
        return _WORD_BITS if fits else _WIDE_BITS

    @property
    def token_bits(self) -> int:
        """Low bits of a word that hold the token."""
        return _WORD_BITS - self._slot_bits if self.word_bits == _WORD_BITS else _WORD_BITS

    @property
    def empty_token(self) -> int:
        """The token of an empty slot."""
        return (1 << self.token_bits) - 1

    @property
    def word_bytes(self) -> int:
        """Bytes of one word."""
        return self.word_bits // 8

    @property
    def longest_at_hand(self) -> int:
        """Most tokens of a request that takes a seat: none in host memory may have the number that means "empty"."""
        return min(self.context_tokens, self.empty_token)

    def map_problems(self, pages: int) -> list[Problem]:
        """Say what is wrong with giving one request so many host pages."""
        if pages <= self.map_pages:
            return []
        rule = f"must be at most {self.map_pages}, those of {self.context_tokens} tokens"
        return [Problem("pages", f"{pages} pages", rule, "make the cache for longer requests")]

    @property
    def _slot_bits(self) -> int:
        return max(1, (self.hot_rows - 1).bit_length())

    def _problems(self) -> list[Problem]:
        problems = [
            Problem(name, repr(value), "must be a whole number, at least 1", "give a positive int")
            for name, value in vars(self).items()
            if type(value) is not int or value < 1
        ]
        if problems:
            return problems

        def refuse(field: str, value: object, rule: str, remedy: str) -> None:
            problems.append(Problem(field, str(value), rule, remedy))

        if self.hot_rows % PAGE_ROWS:
            below, above = self.hot_rows // PAGE_ROWS * PAGE_ROWS, -(-self.hot_rows // PAGE_ROWS) * PAGE_ROWS
            refuse("hot_rows", self.hot_rows, f"must be a multiple of {PAGE_ROWS}", f"use {below or above} or {above}")
        if self.hot_rows > MAX_HOT_ROWS:
            refuse("hot_rows", self.hot_rows, f"must be at most {MAX_HOT_ROWS}", "use fewer hot rows")
        if self.query_rows > MAX_QUERY_ROWS:
            refuse("query_rows", self.query_rows, f"must be at most {MAX_QUERY_ROWS}", "speculate fewer tokens")
        if self.picks > self.hot_rows:
            rule = f"must hold the picks of a step: {self.query_rows} times {self.top_k}, {self.picks}"
            refuse("hot_rows", self.hot_rows, rule, f"use {-(-self.picks // PAGE_ROWS) * PAGE_ROWS} or more")
        if self.seats * self.padded_rows > _MAX_ROW_INDEX:
            rule = f"times {self.padded_rows} rows must stay below 2^31, as row numbers are 32-bit"
            refuse("seats", self.seats, rule, f"use at most {_MAX_ROW_INDEX // self.padded_rows}")
        if self.context_tokens >= 1 << 31:
            refuse("context_tokens", self.context_tokens, "must be below 2^31", "use a shorter context")
        return problems
