"""The engine's side of a node: its host pool mapped into the engine's processes, hot rows, and swap-in.

Each name is imported when it is first asked for: `HostPool` needs no torch, `HotCache` no gRPC.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from hisparse_svc import extras

if TYPE_CHECKING:
    from hisparse_svc.engine.backups import BackUp, back_up
    from hisparse_svc.engine.captured_step import CapturedStep
    from hisparse_svc.engine.decode_session import DecodeSession
    from hisparse_svc.engine.decode_shape import DecodeShape
    from hisparse_svc.engine.hits_first import attend_hits_first
    from hisparse_svc.engine.host_copy import HostCopy
    from hisparse_svc.engine.host_pool import AttachFailed, AttachRefused, HostPool
    from hisparse_svc.engine.hot_cache import HotCache
    from hisparse_svc.engine.importing import Import, LeaseNotHeld
    from hisparse_svc.engine.layer_step import IndexInputs, LayerStep, Overlap
    from hisparse_svc.engine.metering import SwapInMeter
    from hisparse_svc.engine.parking import ParkedSeat, park_seat, unpark_seat
    from hisparse_svc.engine.ranks import ReaderFence, Ticket, WriterFence
    from hisparse_svc.engine.registration import NotRegistered
    from hisparse_svc.engine.rows import MLA_BF16, MLA_F32, MLA_FP8, RowFormat
    from hisparse_svc.engine.running import NotRunning, Running
    from hisparse_svc.engine.streams import partition_stream
    from hisparse_svc.engine.swapping import SwapIn, swap_in
    from hisparse_svc.engine.variants import Choice, Variants, load_of
    from hisparse_svc.kernels import Geometry, HostRows, sparse_mla_decode
    from hisparse_svc.rpc.values import Reclaimed, SwapInUsage, Usage

_HOMES = {
    "WriterFence": "hisparse_svc.engine.ranks",
    "Ticket": "hisparse_svc.engine.ranks",
    "ReaderFence": "hisparse_svc.engine.ranks",
    "sparse_mla_decode": "hisparse_svc.kernels",
    "Running": "hisparse_svc.engine.running",
    "NotRunning": "hisparse_svc.engine.running",
    "CapturedStep": "hisparse_svc.engine.captured_step",
    "Overlap": "hisparse_svc.engine.layer_step",
    "LayerStep": "hisparse_svc.engine.layer_step",
    "IndexInputs": "hisparse_svc.engine.layer_step",
    "HostCopy": "hisparse_svc.engine.host_copy",
    "DecodeShape": "hisparse_svc.engine.decode_shape",
    "DecodeSession": "hisparse_svc.engine.decode_session",
    "MLA_BF16": "hisparse_svc.engine.rows",
    "MLA_F32": "hisparse_svc.engine.rows",
    "MLA_FP8": "hisparse_svc.engine.rows",
    "AttachFailed": "hisparse_svc.engine.host_pool",
    "AttachRefused": "hisparse_svc.engine.host_pool",
    "BackUp": "hisparse_svc.engine.backups",
    "Geometry": "hisparse_svc.kernels",
    "HostPool": "hisparse_svc.engine.host_pool",
    "HostRows": "hisparse_svc.kernels",
    "HotCache": "hisparse_svc.engine.hot_cache",
    "Import": "hisparse_svc.engine.importing",
    "LeaseNotHeld": "hisparse_svc.engine.importing",
    "NotRegistered": "hisparse_svc.engine.registration",
    "ParkedSeat": "hisparse_svc.engine.parking",
    "Reclaimed": "hisparse_svc.rpc.values",
    "RowFormat": "hisparse_svc.engine.rows",
    "Choice": "hisparse_svc.engine.variants",
    "SwapIn": "hisparse_svc.engine.swapping",
    "SwapInMeter": "hisparse_svc.engine.metering",
    "SwapInUsage": "hisparse_svc.rpc.values",
    "Usage": "hisparse_svc.rpc.values",
    "Variants": "hisparse_svc.engine.variants",
    "attend_hits_first": "hisparse_svc.engine.hits_first",
    "back_up": "hisparse_svc.engine.backups",
    "load_of": "hisparse_svc.engine.variants",
    "park_seat": "hisparse_svc.engine.parking",
    "partition_stream": "hisparse_svc.engine.streams",
    "swap_in": "hisparse_svc.engine.swapping",
    "unpark_seat": "hisparse_svc.engine.parking",
}

__all__ = [
    "MLA_BF16",
    "MLA_F32",
    "MLA_FP8",
    "AttachFailed",
    "AttachRefused",
    "BackUp",
    "CapturedStep",
    "Choice",
    "DecodeSession",
    "DecodeShape",
    "Geometry",
    "HostCopy",
    "HostPool",
    "HostRows",
    "HotCache",
    "Import",
    "IndexInputs",
    "LayerStep",
    "LeaseNotHeld",
    "NotRegistered",
    "NotRunning",
    "Overlap",
    "ParkedSeat",
    "ReaderFence",
    "Reclaimed",
    "RowFormat",
    "Running",
    "SwapIn",
    "SwapInMeter",
    "SwapInUsage",
    "Ticket",
    "Usage",
    "Variants",
    "WriterFence",
    "attend_hits_first",
    "back_up",
    "load_of",
    "park_seat",
    "partition_stream",
    "sparse_mla_decode",
    "swap_in",
    "unpark_seat",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        with extras.needed(f"{__name__}.{name}", "engine"):
            value: object = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
