"""Resolvers with one bug each, all of them seen somewhere. The suite must refuse every one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from hisparse_svc.kernels import PAGE_ROWS
from hisparse_svc.kernels.words import pack, slots_of, tokens_of
from hisparse_svc.testing import HotCacheSubject, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class TakesMinusOneForTokenZero(HotCacheSubject):
    def step(self, seats: Sequence[int], picks: Tensor, poison: int) -> Step:
        return super().step(seats, torch.where(picks == -1, 0, picks), poison)


class ReadsBeyondTheRequest(HotCacheSubject):
    def step(self, seats: Sequence[int], picks: Tensor, poison: int) -> Step:
        done = super().step(seats, picks, poison)
        done.rows[(done.rows == -1) & (picks >= 0)] = 0
        return done


class LeavesPaddedOutputsUnwritten(HotCacheSubject):
    def step(self, seats: Sequence[int], picks: Tensor, poison: int) -> Step:
        done = super().step(seats, picks, poison)
        for request, seat in enumerate(seats):
            if seat < 0:
                done.rows[request] = poison
        return done


class LeavesUnpickedOutputsUnwritten(HotCacheSubject):
    last: Tensor | None = None

    def step(self, seats: Sequence[int], picks: Tensor, poison: int) -> Step:
        done = super().step(seats, picks, poison)
        if self.last is not None and self.last.shape == done.rows.shape:
            done.rows[picks == -1] = self.last[picks == -1]
        self.last = done.rows.clone()
        return done


class RunsPaddedRequestsOnSeatZero(HotCacheSubject):
    def step(self, seats: Sequence[int], picks: Tensor, poison: int) -> Step:
        done = super().step([max(seat, 0) for seat in seats], picks, poison)
        for request, seat in enumerate(seats):
            if seat < 0:
                done.rows[request] = -1
                done.misses[request].clear()
        return done


class GivesDuplicatesRowsOfTheirOwn(HotCacheSubject):
    def step(self, seats: Sequence[int], picks: Tensor, poison: int) -> Step:
        done = super().step(seats, picks, poison)
        for request in range(len(seats)):
            seen: set[int] = set()
            flat, rows = picks[request].flatten().tolist(), done.rows[request].flatten()
            for index, token in enumerate(flat):
                if token in seen and rows[index] >= 0:
                    rows[index] += 1
                seen.add(token)
        return done


class _Rewords(HotCacheSubject):
    """Changes the words before or after a step."""

    def before(self, seat: int, picks: Tensor) -> None: ...
    def after(self, seat: int, picks: Tensor, before: Tensor) -> None: ...

    def step(self, seats: Sequence[int], picks: Tensor, poison: int) -> Step:
        for request, seat in enumerate(seats):
            if seat >= 0:
                self.before(seat, picks[request].flatten())
        words = self.cache.words[0].clone()
        done = super().step(seats, picks, poison)
        for request, seat in enumerate(seats):
            if seat >= 0:
                self.after(seat, picks[request].flatten(), words[seat])
        return done


class EvictsFirstInFirstOut(_Rewords):
    """A hit does not renew a token."""

    def after(self, seat: int, picks: Tensor, before: Tensor) -> None:
        del picks
        now = self.cache.words[0][seat]
        stayed = before[torch.isin(before, now)]
        arrived = now[~torch.isin(now, before)]
        self.cache.words[0][seat] = torch.cat([stayed, arrived])


class EvictsTheMostRecent(_Rewords):
    def before(self, seat: int, picks: Tensor) -> None:
        del picks
        words = self.cache.words[0][seat]
        empty = tokens_of(self.geometry, words) == self.geometry.empty_token
        self.cache.words[0][seat] = torch.cat([words[empty], words[~empty].flip(0)])


class EvictsWhileRowsAreFree(_Rewords):
    def before(self, seat: int, picks: Tensor) -> None:
        del picks
        words = self.cache.words[0][seat]
        empty = tokens_of(self.geometry, words) == self.geometry.empty_token
        self.cache.words[0][seat] = torch.cat([words[~empty], words[empty]])


class ForgetsToFreeASeat(HotCacheSubject):
    """The next request finds the words of the last one."""

    def take_seat(self, seat: int, pages: Sequence[int], length: int) -> None:
        words = self.cache.words[0][seat].clone()
        super().take_seat(seat, pages, length)
        self.cache.words[0][seat] = words

    def release_seat(self, seat: int) -> None:
        self.take_seat(seat, (), 0)


class LosesTheLastMiss(HotCacheSubject):
    """A scan that is off by one: the last listed row is never fetched."""

    def step(self, seats: Sequence[int], picks: Tensor, poison: int) -> Step:
        before = self.cache.rows[0].clone()
        done = super().step(seats, picks, poison)
        for request in range(len(seats)):
            if done.misses[request]:
                row = done.misses[request][-1][1]
                self.cache.rows[0][:, row] = before[:, row]
        return done


class ListsHitsAsMisses(HotCacheSubject):
    def step(self, seats: Sequence[int], picks: Tensor, poison: int) -> Step:
        done = super().step(seats, picks, poison)
        for request in range(len(seats)):
            listed = {token for token, _ in done.misses[request]}
            flat = zip(picks[request].flatten().tolist(), done.rows[request].flatten().tolist(), strict=True)
            done.misses[request].extend((token, row) for token, row in flat if row >= 0 and token not in listed)
        return done


class FetchesOneLayerOfAGroup(HotCacheSubject):
    def step(self, seats: Sequence[int], picks: Tensor, poison: int) -> Step:
        others = self.cache.rows[0][1:].clone()
        done = super().step(seats, picks, poison)
        self.cache.rows[0][1:] = others
        return done


class UsesTheFirstLayersRowsForAll(HotCacheSubject):
    def step(self, seats: Sequence[int], picks: Tensor, poison: int) -> Step:
        done = super().step(seats, picks, poison)
        self.cache.rows[0][1:] = self.cache.rows[0][:1]
        return done


class CopiesRowsWithoutTheirTail(HotCacheSubject):
    """640 of 656 bytes, as if rows were whole 128-byte lines."""

    def step(self, seats: Sequence[int], picks: Tensor, poison: int) -> Step:
        done = super().step(seats, picks, poison)
        for misses in done.misses:
            for _, row in misses:
                self.cache.rows[0][:, row, -16:] = 0
        return done


class RoundsScalesToPowersOfTwo(HotCacheSubject):
    """Takes bytes 512 to 528 for scales, and keeps their exponents alone."""

    def step(self, seats: Sequence[int], picks: Tensor, poison: int) -> Step:
        done = super().step(seats, picks, poison)
        for misses in done.misses:
            for _, row in misses:
                self.cache.rows[0][:, row, 512:528] &= torch.tensor([0, 0, 128, 255] * 4, dtype=torch.uint8)
        return done


class BacksNothingUp(HotCacheSubject):
    def append(self, seats: Sequence[int], rows: Tensor) -> None:
        before = self.host_rows.view.clone()
        super().append(seats, rows)
        self.host_rows.view[:] = before


class WritesNewRowsOneRowLate(HotCacheSubject):
    def append(self, seats: Sequence[int], rows: Tensor) -> None:
        super().append(seats, rows)
        newest = self.geometry.hot_rows
        for seat in seats:
            if seat >= 0:
                start = seat * self.geometry.padded_rows + newest
                page = self.cache.rows[0][:, start : start + PAGE_ROWS]
                page[:] = page.roll(1, dims=1)


class ResolvesQueryRowsOneByOne(HotCacheSubject):
    """Each row's misses may evict what an earlier row was promised."""

    def step(self, seats: Sequence[int], picks: Tensor, poison: int) -> Step:
        rows, misses = [], [[] for _ in seats]
        for query_row in range(picks.shape[1]):
            alone = torch.full_like(picks, -1)
            alone[:, query_row] = picks[:, query_row]
            done = super().step(seats, alone, poison)
            rows.append(done.rows[:, query_row])
            for request, listed in enumerate(done.misses):
                misses[request].extend(listed)
        return Step(torch.stack(rows, dim=1), misses)


class WrapsHostOffsets(HotCacheSubject):
    """Offsets modulo 2^32."""

    def step(self, seats: Sequence[int], picks: Tensor, poison: int) -> Step:
        true_map = self.cache.state.page_map.clone()
        pages = (1 << 32) // self.host_rows.page_pitch
        self.cache.state.page_map[:] = torch.where(true_map >= pages, true_map - pages, true_map)
        done = super().step(seats, picks, poison)
        self.cache.state.page_map[:] = true_map
        return done


class TrustsShortRequestsToLieInOrder(HotCacheSubject):
    """A request shorter than the hot rows: token t is taken to be in row t."""

    def step(self, seats: Sequence[int], picks: Tensor, poison: int) -> Step:
        done = super().step(seats, picks, poison)
        for request, seat in enumerate(seats):
            length = int(self.cache.state.lengths[seat]) if seat >= 0 else 0
            if 0 < length <= self.geometry.hot_rows:
                valid = (picks[request] >= 0) & (picks[request] < length)
                done.rows[request][valid] = picks[request][valid] + seat * self.geometry.padded_rows
                done.misses[request].clear()
        return done


class EvictsWhatIsPicked(_Rewords):
    """Victims are chosen before hits are known; a hit among them is fetched again elsewhere."""

    def before(self, seat: int, picks: Tensor) -> None:
        words = self.cache.words[0][seat]
        tokens = tokens_of(self.geometry, words)
        missing = len({t for t in picks.tolist() if t >= 0} - set(tokens.tolist()))
        dropped = torch.arange(len(words)) < missing
        slots = slots_of(self.geometry, words)
        empty = torch.full_like(tokens, self.geometry.empty_token)
        self.cache.words[0][seat] = pack(self.geometry, slots, torch.where(dropped, empty, tokens))


# Bug → the check that must refuse it.
BUGS: dict[type[HotCacheSubject], str] = {
    TakesMinusOneForTokenZero: "nothing_picked",
    ReadsBeyondTheRequest: "ids_out_of_range_get_nothing",
    LeavesPaddedOutputsUnwritten: "padded_requests_are_inert",
    LeavesUnpickedOutputsUnwritten: "outputs_shrink",
    RunsPaddedRequestsOnSeatZero: "padded_requests_are_inert",
    GivesDuplicatesRowsOfTheirOwn: "duplicates_share_a_row",
    EvictsFirstInFirstOut: "recency_decides",
    EvictsTheMostRecent: "random_steps",
    EvictsWhileRowsAreFree: "random_steps",
    EvictsWhatIsPicked: "random_steps",
    ForgetsToFreeASeat: "seats_are_reused",
    LosesTheLastMiss: "random_steps",
    ListsHitsAsMisses: "random_steps",
    FetchesOneLayerOfAGroup: "layers_that_share_an_index",
    UsesTheFirstLayersRowsForAll: "layers_that_share_an_index",
    CopiesRowsWithoutTheirTail: "random_steps",
    RoundsScalesToPowersOfTwo: "random_steps",
    BacksNothingUp: "new_tokens_stay_right",
    WritesNewRowsOneRowLate: "new_tokens_stay_right",
    ResolvesQueryRowsOneByOne: "union_of_3_query_rows",
    WrapsHostOffsets: "host_rows_beyond_4_gib",
    TrustsShortRequestsToLieInOrder: "lengths_at_the_edges",
}
