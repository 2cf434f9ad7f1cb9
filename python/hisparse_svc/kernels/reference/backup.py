"""New rows: into the newest page, and from there, or from a prefill's buffer, to host memory.

::

    attention's KV write ── append ──► newest page ── backup ──► host rows        every step
    prefill's KV of many tokens ─────── backup_pages ──────────► host rows        in bulk

A token without a host page is not backed up; a padded request moves nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hisparse_svc.kernels.geometry import PAGE_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from hisparse_svc.kernels.geometry import Geometry
    from hisparse_svc.kernels.host_rows import HostRows
    from hisparse_svc.kernels.tensors import SeatState, StepPlan

__all__ = ["append", "backup", "backup_pages"]


def append(geometry: Geometry, hot: Tensor, state: SeatState, plan: StepPlan, rows: Tensor) -> None:
    """Write this step's rows of one layer to the newest pages.

    Args:
        geometry: Shape of the hot cache.
        hot: Hot rows of the layer, `[row, byte]`.
        state: Lengths, these rows included.
        plan: Seats of this step.
        rows: New rows, `[request, query row, byte]`; the last one is the request's last token.
    """
    for request, query_row, _, token, hot_row in _new_tokens(geometry, state, plan, rows.shape[1]):
        del token
        hot[hot_row] = rows[request, query_row]


def backup(
    geometry: Geometry, host: HostRows, hot: Tensor, state: SeatState, plan: StepPlan, *, query_rows: int | None = None
) -> None:
    """Copy this step's rows of all layers of a group from the newest pages to host memory.

    Args:
        geometry: Shape of the hot cache.
        host: Rows of the group in host memory.
        hot: Its hot rows, `[layer, row, byte]`.
        state: Lengths and page maps.
        plan: Seats of this step.
        query_rows: New tokens of each request; the geometry's where not given.
    """
    for _, _, seat, token, hot_row in _new_tokens(geometry, state, plan, query_rows or geometry.query_rows):
        page = int(state.page_map[seat, token // PAGE_ROWS])
        if 0 <= page < host.pages:
            host.view[page, token % PAGE_ROWS] = hot[:, hot_row]


def backup_pages(host: HostRows, rows: Tensor, pages: Tensor, *, first_token: int = 0, first_layer: int = 0) -> None:
    """Copy many consecutive tokens of one request to host memory.

    Args:
        host: Rows of the group in host memory.
        rows: Rows of consecutive tokens, `[layer, token, byte]`.
        pages: Host pages of the request, from its first token on.
        first_token: Token of the first row.
        first_layer: Layer of the group that the first of `rows` is of.
    """
    for index in range(rows.shape[1]):
        token = first_token + index
        page = int(pages[token // PAGE_ROWS])
        if 0 <= page < host.pages:
            host.view[page, token % PAGE_ROWS, first_layer : first_layer + rows.shape[0]] = rows[:, index]


def _new_tokens(
    geometry: Geometry, state: SeatState, plan: StepPlan, query_rows: int
) -> Iterator[tuple[int, int, int, int, int]]:
    """Give request, query row, seat, token and its row in the newest page, for every row of this step."""
    for request, seat in enumerate(plan.seats.tolist()):
        if not 0 <= seat < geometry.seats:
            continue
        length = min(int(state.lengths[seat]), geometry.context_tokens)
        for query_row in range(query_rows):
            token = length - query_rows + query_row
            if token >= 0:
                newest_page = seat * geometry.padded_rows + geometry.hot_rows
                yield request, query_row, seat, token, newest_page + token % PAGE_ROWS
