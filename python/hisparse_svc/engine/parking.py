"""Retract and resume: a request gives up its seat, keeps its host pages, and comes back with the same rows hot.

::

    seat 3 ── park_seat ──► words and newest tokens, on the CPU ── unpark_seat ──► seat 5: rows fetched from host memory
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hisparse_svc.engine.hot_cache import HotCache
from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kernels import NEWEST_TOKENS, PAGE_ROWS, gather
from hisparse_svc.kernels.kinds import demand_kinds, each
from hisparse_svc.kernels.words import slots_of, tokens_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from hisparse_svc.kernels import HostRows

__all__ = ["ParkedSeat", "park_seat", "unpark_seat"]


@dataclass(frozen=True)
class ParkedSeat:
    """What a request takes along that gave up its seat.

    Attributes:
        length: Tokens of it.
        newest_from: First token that its newest page served.
        pages: Its host pages, in order.
        words: Words of each group, `[group, hot row]`, on the CPU.
    """

    length: int
    newest_from: int
    pages: tuple[int, ...]
    words: Tensor


def park_seat(cache: HotCache, seat: int) -> ParkedSeat:
    """Take a request off its seat. All of its rows must be backed up; waits for the device.

    Args:
        cache: The hot cache.
        seat: Seat of the request; free afterwards.

    Raises:
        InvalidInput: The cache has no such seat.
    """
    demand_kinds(each(HotCache, cache=cache), each(int, seat=seat))
    if not 0 <= seat < cache.geometry.seats:
        rule = f"must be 0 to {cache.geometry.seats - 1}"
        raise InvalidInput([Problem("seat", str(seat), rule, "name a seat of this cache")])
    state = cache.state
    parked = ParkedSeat(
        length=int(state.lengths[seat]),
        newest_from=int(state.newest_from[seat]),
        pages=tuple(int(page) for page in state.page_map[seat, : int(state.mapped_pages[seat])].tolist()),
        words=cache.words[:, seat].clone().cpu(),  # on the CPU, cpu() alone is no copy
    )
    cache.release_seat(seat)
    return parked


def unpark_seat(cache: HotCache, seat: int, parked: ParkedSeat, hosts: Sequence[HostRows]) -> None:
    """Give a parked request a seat: the same tokens hot, in the same order of use. Uses the plan's buffers.

    Args:
        cache: The hot cache.
        seat: A free seat.
        parked: What `park_seat` gave.
        hosts: Host rows of each group.

    Raises:
        InvalidInput: Words of another geometry, or host rows of other groups.
    """
    if parked.words.shape != cache.words[:, seat].shape or len(hosts) != len(cache.layer_groups):
        rule = f"must be {tuple(cache.words[:, seat].shape)}, with host rows of {len(cache.layer_groups)} groups"
        problem = Problem("parked.words", str(tuple(parked.words.shape)), rule, "resume on a cache of the same shape")
        raise InvalidInput([problem])
    if problems := [wrong for group, host in enumerate(hosts) for wrong in cache.host_problems(group, host)]:
        raise InvalidInput(problems)
    cache.take_seat(seat, parked.pages, parked.length)
    cache.state.newest_from[seat] = parked.newest_from
    cache.words[:, seat] = parked.words.to(cache.device)
    geometry = cache.geometry
    newest = torch.arange(max(parked.length - NEWEST_TOKENS, parked.newest_from), parked.length)
    for group, host in enumerate(hosts):
        tokens = tokens_of(geometry, parked.words[group])
        held = tokens != geometry.empty_token
        tokens = torch.cat([tokens[held], newest])
        slots = torch.cat([slots_of(geometry, parked.words[group])[held], geometry.hot_rows + newest % PAGE_ROWS])
        _fetch(cache, group, host, torch.stack([tokens, seat * geometry.padded_rows + slots], dim=1).int())


def _fetch(cache: HotCache, group: int, host: HostRows, misses: Tensor) -> None:
    plan = cache.plan.first(1)
    for start in range(0, len(misses), cache.geometry.picks):
        part = misses[start : start + cache.geometry.picks]
        plan.misses[0, : len(part)] = part.to(cache.device)
        plan.counts[0] = len(part)
        gather(cache.geometry, host, cache.rows[group], cache.state, plan)
