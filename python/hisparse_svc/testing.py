"""Conformance of resolvers: whatever swaps rows in can be run through this, ours and others'.

::

    make(Shape) ──► Subject ──┐
    check: a scenario ────────┴──► Run: drives it, models it, compares every step ──► NonConforming, with its seed

Needs torch, no GPU and no test framework.

Example:
    >>> from hisparse_svc import testing
    >>> testing.run(testing.HotCacheSubject, checks=["nothing_picked"])
    1
    >>> len(testing.CHECKS) >= 12
    True
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hisparse_svc._conformance.run import NonConforming, Run
from hisparse_svc._conformance.subject import POISON, HotCacheSubject, Shape, Step, Subject
from hisparse_svc.errors import InvalidInput, Problem

__all__ = ["CHECKS", "POISON", "Check", "HotCacheSubject", "NonConforming", "Shape", "Step", "Subject", "run"]

Make = Callable[[Shape], Subject]


@dataclass(frozen=True)
class Check:
    """One scenario.

    Attributes:
        name: What it shows.
        shape: What it needs.
        scenario: Drives a run.
    """

    name: str
    shape: Shape
    scenario: Callable[[Run], None]

    def __call__(self, make: Make, *, seed: int = 0, exact_lru: bool = True) -> None:
        """Run it on a fresh subject.

        Args:
            make: Makes a subject of a shape.
            seed: Seed of all its chance.
            exact_lru: Whether victims must be the least recently used; other policies still must not evict in vain.

        Raises:
            NonConforming: The subject broke a rule.
        """
        self.scenario(Run(self.name, make(self.shape), self.shape, seed, exact_lru=exact_lru))


CHECKS: dict[str, Check] = {}
"""All checks by name."""


def run(make: Make, *, seeds: Iterable[int] = (0,), checks: Iterable[str] = (), exact_lru: bool = True) -> int:
    """Run a subject through the suite.

    Args:
        make: Makes a subject of a shape.
        seeds: Seeds to run every check with.
        checks: Names of checks; all where none is named.
        exact_lru: Whether victims must be the least recently used.

    Returns:
        How many checks passed.

    Raises:
        NonConforming: The subject broke a rule.
        InvalidInput: A check that is none, or no seed.
    """
    names, seeds = list(checks), list(seeds)
    problems = [
        Problem("checks", name, f"must be one of {', '.join(CHECKS)}", "leave checks out for all of them")
        for name in names
        if name not in CHECKS
    ]
    if not seeds:
        problems.append(Problem("seeds", "none", "must name at least one", "leave it out for seed 0"))
    if problems:
        raise InvalidInput(problems)
    chosen = [CHECKS[name] for name in names] or list(CHECKS.values())
    passed = 0
    for seed in seeds:
        for check in chosen:
            check(make, seed=seed, exact_lru=exact_lru)
            passed += 1
    return passed


def _check(shape: Shape = Shape()) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:  # noqa: B008 - frozen
    def register(scenario: Callable[[Run], None]) -> Callable[[Run], None]:
        name = scenario.__name__.strip("_")
        CHECKS[name] = Check(name, shape, scenario)
        return scenario

    return register


def _picks(run: Run, seat: int, count: int, among: int = 0) -> list[int]:
    """Distinct tokens of a request in random order."""
    tokens = among or run.length(seat)
    return run.random.sample(range(tokens), min(count, tokens))


def _drifting(run: Run, seat: int, last: list[int], new: int) -> list[int]:
    """The last step's picks with some of them replaced, as an indexer's are."""
    kept = run.random.sample(last, max(0, len(last) - new))
    fresh = [token for token in _picks(run, seat, run.shape.top_k) if token not in kept]
    picks = kept + fresh[: run.shape.top_k - len(kept)]
    run.random.shuffle(picks)
    return picks


@_check()
def _random_steps(run: Run) -> None:
    """Hits, misses and evictions in every mixture, over requests in changing order."""
    for seat in range(run.shape.seats):
        run.admit(seat, run.random.randint(200, run.shape.context_tokens))
    last = {seat: _picks(run, seat, run.shape.top_k) for seat in range(run.shape.seats)}
    for _ in range(30):
        seats = run.random.sample(range(run.shape.seats), run.random.randint(1, run.shape.seats))
        for seat in seats:
            last[seat] = _drifting(run, seat, last[seat], run.random.choice([0, 1, 5, 20, run.shape.top_k]))
        run.step(seats, [[last[seat]] for seat in seats])


@_check()
def _recency_decides(run: Run) -> None:
    """A cache filled to the brim, then tokens used again and again while others come and go."""
    run.admit(0, 1500)
    favourites = list(range(20))
    for start in range(0, 900, 28):
        run.step([0], [[favourites + list(range(100 + start, 128 + start))]])
    for start in range(900, 100, -28):
        run.step([0], [[list(range(start, start + 28))]])


@_check()
def _lengths_at_the_edges(run: Run) -> None:
    """Requests of 0, 1, k-1, k, hot-1, hot, hot+1 tokens, and of a whole context."""
    k, hot = run.shape.top_k, run.shape.hot_rows
    for length in (0, 1, k - 1, k, k + 1, hot - 1, hot, hot + 1, run.shape.context_tokens):
        run.admit(1, length)
        for _ in range(4):
            run.step([1], [[_picks(run, 1, k)]])
        run.step([1], [[[length - 1, 0] if length else []]])


@_check()
def _nothing_picked(run: Run) -> None:
    """-1 in any place, alone and among picks."""
    run.admit(0, 300)
    run.step([0], [[[]]])
    run.step([0], [[[-1, 5, -1, -1, 7, -1]]])
    run.step([0], [[[-1] * run.shape.top_k]])
    run.step([0], [[[7, -1, 5]]])


@_check()
def _duplicates_share_a_row(run: Run) -> None:
    """One token picked many times, hot and missing."""
    run.admit(0, 900)
    run.step([0], [[[3] * run.shape.top_k]])
    for _ in range(10):
        once = _picks(run, 0, run.shape.top_k // 3)
        picks = once * 2 + once[: run.shape.top_k - 2 * len(once)]
        run.random.shuffle(picks)
        run.step([0], [[picks]])
        run.step([0], [[picks[::-1]]])


@_check()
def _ids_out_of_range_get_nothing(run: Run) -> None:
    """What is no token of the request has no row, whatever lies there."""
    run.admit(0, 700)
    run.admit(1, 100)
    wild = [100, 101, 699, 2047, 2048, 65_535, 65_536, 2**20 - 1, 2**31 - 1, -2, -(2**31)]
    for _ in range(3):
        run.step([0, 1], [[_picks(run, 0, 40)], [[*wild, 5, 99]]])


@_check()
def _padded_requests_are_inert(run: Run) -> None:
    """Padded rows of a captured graph: nothing read, nothing changed, every output written."""
    run.admit(0, 400, room=64)
    run.admit(2, 400)
    for _ in range(6):
        full = list(range(run.shape.top_k))
        run.step([-1, 0, -1], [[full], [_picks(run, 0, 40)], [full]])
        run.step([2, -1], [[_picks(run, 2, 40)], [full]])
        run.append([-1, 0])
        run.step([0, 2], [[[run.length(0) - 1, *_picks(run, 0, 3)]], [_picks(run, 2, 48)]])


@_check()
def _seats_are_reused(run: Run) -> None:
    """A finished request leaves nothing for the next one on its seat, nor for the pages it had."""
    for round_ in range(8):
        seat = round_ % 2
        run.admit(seat, run.random.randint(100, 600))
        for _ in range(3):
            run.step([seat], [[_picks(run, seat, run.shape.top_k)]])
        if round_ % 3 == 2:
            run.finish(seat)


@_check()
def _outputs_shrink(run: Run) -> None:
    """Fewer picks than the step before: nothing of it is left in the outputs."""
    run.admit(0, 1000)
    for count in (48, 20, 47, 1, 0, 33):
        run.step([0], [[_picks(run, 0, count)]])


def _decode(run: Run, seats: list[int], steps: int, query_rows: int) -> None:
    for _ in range(steps):
        run.append(seats, query_rows)
        picks = []
        for seat in seats:
            tail = list(range(max(0, run.length(seat) - 90), run.length(seat)))
            rows = [
                [*tail[-3:], *run.random.sample(tail, min(12, len(tail))), *_picks(run, seat, 20)]
                for _ in range(query_rows)
            ]
            picks.append([list(dict.fromkeys(row)) for row in rows])
        run.step(seats, picks)


@_check()
def _new_tokens_stay_right(run: Run) -> None:
    """Generated tokens, from the step that writes them until long after they left the newest page."""
    for seat, length in enumerate((1, 63, 500)):
        run.admit(seat, length, room=200)
    _decode(run, [0, 1, 2], 150, 1)
    for seat in range(3):
        run.check_host(seat)


@_check(Shape(query_rows=3, hot_rows=192))
def _refused_drafts_are_forgotten(run: Run) -> None:
    """Drafts that were written, backed up and picked, then refused and written again."""
    run.admit(0, 200, room=300)
    run.admit(2, 70, room=300)
    for _ in range(60):
        run.append([0, 2], 3)
        refused = run.random.randint(0, 2)
        wanted = [[[*_picks(run, seat, 30), run.length(seat) - 1] for _ in range(3)] for seat in (0, 2)]
        run.step([0, 2], wanted)
        if refused:
            run.refuse([0, 2], refused)
    run.append([0, 2], 3)
    run.check_host(0)
    run.check_host(2)


def _query_rows(query_rows: int) -> Callable[[Run], None]:
    def scenario(run: Run) -> None:
        """Query rows of one request share rows, and none evicts what another needs."""
        for seat in range(2):
            run.admit(seat, 1200)
        for step in range(12):
            union = run.shape.top_k * query_rows
            pool = _picks(run, 0, union if step % 3 else run.shape.top_k + 9)
            rows = [
                pool[i * run.shape.top_k : (i + 1) * run.shape.top_k]
                if step % 3
                else run.random.sample(pool, run.shape.top_k)
                for i in range(query_rows)
            ]
            run.step([0, 1], [rows, [_picks(run, 1, run.shape.top_k) for _ in range(query_rows)]])

    scenario.__name__ = f"union_of_{query_rows}_query_rows"
    return scenario


for _rows in (2, 3, 4):
    # As few hot rows as the union needs: it may take every one of them.
    _check(Shape(query_rows=_rows, hot_rows=-(-48 * _rows // 64) * 64))(_query_rows(_rows))


@_check(Shape(layers=4))
def _layers_that_share_an_index(run: Run) -> None:
    """Every layer of a group gets its own rows, by one plan."""
    run.admit(0, 900, room=100)
    run.admit(1, 60, room=100)
    _decode(run, [0, 1], 20, 1)
    run.check_host(0)


@_check(Shape(layers=3, row_bytes=1152, align_bytes=128))
def _bf16_rows(run: Run) -> None:
    """Rows of 1152 bytes, 128-byte aligned."""
    run.admit(0, 900, room=100)
    _decode(run, [0], 12, 1)


@_check(Shape(layers=2, row_bytes=656, align_bytes=64))
def _padded_rows_of_656_bytes(run: Run) -> None:
    """Rows of 656 bytes, 704 apart."""
    run.admit(0, 900, room=100)
    _decode(run, [0], 12, 1)


@_check(Shape(row_bytes=2304))
def _fp32_rows(run: Run) -> None:
    """Test rows of 2304 bytes."""
    run.admit(0, 900, room=100)
    _decode(run, [0], 12, 1)


@_check(Shape(seats=2, top_k=16, hot_rows=64, row_bytes=2304, layers=4, context_tokens=512, host_pages=8192))
def _host_rows_beyond_4_gib(run: Run) -> None:
    """Offsets that 32 bits, signed or not, do not hold."""
    pages = run.shape.host_pages
    run.admit(0, 400, pages=[pages - 1, 0, 3650, pages - 2, 7300, 1, pages - 3, 3641])
    for _ in range(8):
        run.step([0], [[_picks(run, 0, 16)]])


@_check(Shape(seats=500, top_k=16, hot_rows=1984, row_bytes=2304, context_tokens=512))
def _hot_rows_beyond_2_gib(run: Run) -> None:
    """Rows of the last of many seats."""
    run.admit(499, 400)
    run.admit(1, 300)
    for _ in range(4):
        run.step([499, 1], [[_picks(run, 499, 16)], [_picks(run, 1, 16)]])


@_check(Shape(seats=2, context_tokens=1 << 20, hot_rows=4096, top_k=64, host_pages=64))
def _contexts_of_a_million_tokens(run: Run) -> None:
    """Token numbers up to the last bit of a word."""
    run.admit(0, 2000)
    for _ in range(3):
        run.step([0], [[[2**20 - 1, *_picks(run, 0, 60)]]])
