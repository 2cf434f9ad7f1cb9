"""Compile-time constants of the kernels: what a geometry and a host layout become.

::

    context ≤ 65,536 and the table fits ──► resolve_table.cu      misses in the order of the picks
    else                                ──► resolve_bitmap.cu     misses by token
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hisparse_svc.kernels.errors import DeviceUnavailable
from hisparse_svc.kernels.geometry import MAX_BATCH, NEWEST_TOKENS, PAGE_ROWS
from hisparse_svc.kernels.placement import GATHER_BINS, GATHER_CLUSTER

if TYPE_CHECKING:
    from hisparse_svc.kernels.geometry import Geometry
    from hisparse_svc.kernels.host_rows import HostRows
    from hisparse_svc.kernels.reference.resolve import MissOrder

__all__ = [
    "Constants",
    "Resolver",
    "gather_constants",
    "geometry_constants",
    "resolver_for",
    "resolvers",
    "row_constants",
]

_MAX_TABLE_TOKENS = 65_536
_MAX_TABLE_PICKS = 16_384
_MAX_THREADS = 1024
_WARP = 32
_BIT_BLOCK_TOKENS = 64

Constants = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Resolver:
    """One of the resolve kernels, for one geometry.

    Attributes:
        source: Its file.
        order: Order of the tokens that arrive in one step.
        threads: Threads of a block.
        shared_bytes: Shared memory of a block.
        constants: What is defined for it.
    """

    source: str
    order: MissOrder
    threads: int
    shared_bytes: int
    constants: Constants


def geometry_constants(geometry: Geometry) -> Constants:
    """Give what every kernel knows of the hot cache's shape."""
    return (
        ("HOT", geometry.hot_rows),
        ("PADDED", geometry.padded_rows),
        ("PAGE", PAGE_ROWS),
        ("NEWEST_TOKENS", NEWEST_TOKENS),
        ("PICKS", geometry.picks),
        ("CONTEXT", geometry.context_tokens),
        ("MAP_PAGES", geometry.map_pages),
    )


def row_constants(row_bytes: int, layers: int, host: HostRows | None, hot_pitch: int) -> Constants:
    """Give what copies know of rows; `layers` of them at a time."""
    host_layer_pitch = host.layer_pitch if host is not None and host.layers > 1 else row_bytes
    return (
        ("ROW_BYTES", row_bytes),
        ("LAYERS", layers),
        ("HOST_LAYER_PITCH", host_layer_pitch),
        ("HOT_PITCH", hot_pitch),
        ("MAX_BATCH", MAX_BATCH),
    )


def gather_constants(blocks: int, order_from: int, *, between: bool = False) -> Constants:
    """Give what the gather knows of its grid; `between`: resolve and attention run beside it for a while."""
    clusters = (("PARTS", min(blocks, GATHER_CLUSTER)), ("BINS", GATHER_BINS), ("ORDER_FROM", order_from))
    return (*clusters, ("BETWEEN", int(between)))


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def _power_of_two(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


def resolvers(geometry: Geometry, *, parted: bool = False) -> list[Resolver]:
    """Give the kernels that this geometry allows, fastest first, whatever shared memory they need.

    Args:
        geometry: Shape of the hot cache.
        parted: They also give hits and misses apart.
    """
    threads = min(_MAX_THREADS, geometry.hot_rows // _WARP * _WARP)
    common = (
        *geometry_constants(geometry),
        ("QUERY_ROWS", geometry.query_rows),
        ("TOP_K", geometry.top_k),
        ("WORD_BITS", geometry.word_bits),
        ("TOKEN_BITS", geometry.token_bits),
        ("PARTED", int(parted)),
    )
    found = []
    if geometry.context_tokens <= _MAX_TABLE_TOKENS and geometry.picks <= _MAX_TABLE_PICKS:
        picks2, table = _power_of_two(geometry.picks), _power_of_two(geometry.context_tokens)
        table = max(table, 2)
        shared = _round_up(8 * picks2 + 8 * _WARP + 2 * geometry.picks + 2 * table, 4)
        constants = (*common, ("PICKS2", picks2), ("TABLE", table))
        found.append(Resolver("resolve_table.cu", "picks", threads, shared, constants))
    blocks = _round_up(-(-geometry.context_tokens // _BIT_BLOCK_TOKENS), threads)
    shared = _round_up(10 * blocks + 8 * geometry.picks + 12 * _WARP, 8)
    found.append(Resolver("resolve_bitmap.cu", "tokens", threads, shared, (*common, ("BLOCKS", blocks))))
    return found


def resolver_for(geometry: Geometry, shared_memory_bytes: int, *, parted: bool = False) -> Resolver:
    """Choose the kernel that fits a device.

    Raises:
        DeviceUnavailable: None fits.
    """
    candidates = resolvers(geometry, parted=parted)
    for candidate in candidates:
        if candidate.shared_bytes <= shared_memory_bytes:
            return candidate
    least = min(candidate.shared_bytes for candidate in candidates)
    raise DeviceUnavailable(
        f"resolving {geometry.picks} picks of {geometry.context_tokens} tokens needs {least} bytes of shared memory a "
        f"block and this GPU has {shared_memory_bytes}; use a shorter context or fewer speculative tokens"
    )
