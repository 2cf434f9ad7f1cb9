"""Picks → hot rows, by exact least-recently-used.

::

    words before   [ o o h o h o o h … ]          o: not picked this step, h: picked and hot
    words after    [ o o o … │ h h h │ n n ]      n: picked and missing, each in the slot of one of the oldest o
                     oldest            newest

The union of a request's query rows is resolved at once, so no row evicts what another needs, and tokens picked twice
share a row. Tokens that arrive in one step are equally recent; `order` says how they lie among themselves and in the
miss list: as picked, or by token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from hisparse_svc.kernels.geometry import NEWEST_TOKENS, PAGE_ROWS
from hisparse_svc.kernels.words import pack, slots_of, tokens_of

if TYPE_CHECKING:
    from torch import Tensor

    from hisparse_svc.kernels.geometry import Geometry
    from hisparse_svc.kernels.tensors import SeatState, StepPlan

__all__ = ["MissOrder", "newest_start", "resolve"]

MissOrder = Literal["picks", "tokens"]


def newest_start(geometry: Geometry, length: int, newest_from: int) -> int:
    """Give the first token that the newest page serves; the one whose number means "empty" never is in the words."""
    return min(max(length - NEWEST_TOKENS, newest_from), geometry.empty_token)


def resolve(geometry: Geometry, words: Tensor, state: SeatState, plan: StepPlan, *, order: MissOrder = "picks") -> None:
    """Fill the plan's rows, misses and counts, and bring the words up to date.

    Args:
        geometry: Shape of the hot cache.
        words: Words of one group, `[seats, hot_rows]`.
        state: Lengths and newest tokens of the seats.
        plan: Seats and picks of this step; a seat occurs once.
        order: Order of the tokens that arrive in one step.
    """
    for request, seat in enumerate(plan.seats.tolist()):
        if not 0 <= seat < geometry.seats:
            plan.rows[request] = -1
            plan.counts[request] = 0
            continue
        length = min(int(state.lengths[seat]), geometry.context_tokens)
        picks = plan.picks[request].flatten().long()
        valid = (picks >= 0) & (picks < length)
        newest = valid & (picks >= newest_start(geometry, length, int(state.newest_from[seat])))
        wanted = picks[valid & ~newest]

        hit = torch.isin(tokens_of(geometry, words[seat]), wanted)
        hits, stale = words[seat][hit], words[seat][~hit]
        missing = _distinct(wanted[~torch.isin(wanted, tokens_of(geometry, hits))], order)
        count = len(missing)
        arrived = pack(geometry, slots_of(geometry, stale[:count]), missing)
        words[seat] = torch.cat([stale[count:], hits, arrived])

        held, at = tokens_of(geometry, words[seat]).tolist(), slots_of(geometry, words[seat]).tolist()
        slot_of = dict(zip(held, at, strict=True))
        slots = [
            geometry.hot_rows + token % PAGE_ROWS if new else slot_of[token]
            for token, new in zip(picks[valid].tolist(), newest[valid].tolist(), strict=True)
        ]
        first_row = seat * geometry.padded_rows
        rows = torch.full_like(picks, -1)
        rows[valid] = first_row + torch.tensor(slots, dtype=torch.int64)
        plan.rows[request] = rows.view_as(plan.rows[request]).int()
        plan.misses[request, :count, 0] = missing.int()
        plan.misses[request, :count, 1] = (first_row + slots_of(geometry, arrived)).int()
        plan.counts[request] = count


def _distinct(tokens: Tensor, order: MissOrder) -> Tensor:
    """Each token once, in the order of its first pick or by number."""
    if order == "tokens":
        return torch.tensor(sorted(set(tokens.tolist())), dtype=torch.int64)
    return torch.tensor(list(dict.fromkeys(tokens.tolist())), dtype=torch.int64)
