"""The indexer's kernels as functions of tensors. Arguments are checked by `kernels.index.api`, which calls these.

::

    logits    one block an SM, each an equal share of all pages of all requests
    top_k     a cluster a query row, as many blocks as there are SMs for, up to 8
    keys      a warp a key
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hisparse_svc.kernels.cuda.arguments import device_of, i32, i64
from hisparse_svc.kernels.cuda.compile import load_kernel, shared_memory_bytes
from hisparse_svc.kernels.errors import DeviceUnavailable
from hisparse_svc.kernels.geometry import PAGE_ROWS
from hisparse_svc.kernels.index.keys import INDEX_FP8, INDEX_WIDTH

if TYPE_CHECKING:
    from torch import Tensor

    from hisparse_svc.kernels.cuda.shapes import Constants
    from hisparse_svc.kernels.geometry import Geometry
    from hisparse_svc.kernels.index.call import IndexCall
    from hisparse_svc.kernels.index.keys import IndexKeys
    from hisparse_svc.kernels.tensors import SeatState, StepPlan

__all__ = [
    "TOP_K_SHARED_BYTES",
    "TOP_K_THREADS",
    "LogitsShape",
    "append_keys",
    "cluster_for",
    "logits",
    "logits_constants",
    "logits_shape_for",
    "top_k",
    "top_k_constants",
    "write_keys",
]

_MIN_SM = 90
_WARP = 32
_GROUP_THREADS = 128
_MAX_ROWS = 4
_QUERIES_BYTES = 65_536
_ALIGN_BYTES = 1024
_STAGE_EXTRA_BYTES = 24

TOP_K_THREADS = 1024
TOP_K_SHARED_BYTES = 49_152
_MAX_CLUSTER = 8
_LEAST_SHARE_TOKENS = 16_384

_KEY_THREADS = 256
_KEY_BLOCKS = 1024


@dataclass(frozen=True)
class LogitsShape:
    """How the logits' kernel is cut for a number of heads and query rows.

    Attributes:
        rows: Query rows of a request that one reading of its keys serves.
        groups: Warpgroups that compute.
        stages: Pages in flight.
        shared_bytes: Shared memory of a block.
    """

    rows: int
    groups: int
    stages: int
    shared_bytes: int

    @property
    def threads(self) -> int:
        """Threads of a block: the groups and a warp that fetches."""
        return self.groups * _GROUP_THREADS + _WARP


def logits_shape_for(heads: int, query_rows: int, shared_bytes: int) -> LogitsShape:
    """Choose it: every warpgroup has its own queries, and the ring takes what they leave."""
    block = 64 if heads % 64 == 0 else 32
    padded = -(-heads // block) * block
    rows = min(query_rows, _MAX_ROWS)
    groups = 4 if 4 * rows * padded * INDEX_WIDTH <= _QUERIES_BYTES else 2
    queries = groups * rows * padded * (INDEX_WIDTH + 4)
    room = shared_bytes - 2 * _ALIGN_BYTES - queries - _ALIGN_BYTES
    stages = room // (INDEX_FP8.page_bytes + _STAGE_EXTRA_BYTES) // groups * groups
    return LogitsShape(rows, groups, stages, shared_bytes)


def logits_constants(heads: int, query_rows: int, shape: LogitsShape) -> Constants:
    """Give what the logits' kernel is compiled for."""
    return (
        ("PAGE", PAGE_ROWS),
        ("QUERY_ROWS", query_rows),
        ("HEADS", heads),
        ("ROWS", shape.rows),
        ("GROUPS", shape.groups),
        ("STAGES", shape.stages),
    )


def logits(call: IndexCall, *, shape: LogitsShape | None = None, blocks: int = 0) -> None:
    """Fill `call.logits`, on the current stream; `blocks` of 0 takes every SM."""
    device = device_of(call.logits)
    chosen = shape or logits_shape_for(call.heads, call.query_rows, shared_memory_bytes(device))
    constants = logits_constants(call.heads, call.query_rows, chosen)
    load_kernel(
        device,
        "index_logits.cu",
        "index_logits",
        constants,
        threads=chosen.threads,
        shared_bytes=chosen.shared_bytes,
        own_arch=True,
    ).launch(
        torch.cuda.current_stream(device),
        blocks or _sms(device),
        call.q.data_ptr(),
        call.weights.data_ptr(),
        call.keys.pages.data_ptr(),
        call.page_map.data_ptr(),
        call.plan.seats.data_ptr(),
        call.state.lengths.data_ptr(),
        call.logits.data_ptr(),
        i32(call.plan.batch),
        i32(call.geometry.seats),
        i32(call.geometry.context_tokens),
        i32(call.geometry.map_pages),
        i32(call.keys.page_count),
        i64(call.keys.pages.stride(0)),
        i64(call.logits.stride(1)),
    )


def top_k_constants(geometry: Geometry, cluster: int) -> Constants:
    """Give what the top-k kernel is compiled for."""
    return (("TOP_K", geometry.top_k), ("QUERY_ROWS", geometry.query_rows), ("CLUSTER", cluster))


def top_k(geometry: Geometry, state: SeatState, plan: StepPlan, scores: Tensor, *, cluster: int = 0) -> None:
    """As `reference.index_top_k`, on the current stream; `cluster` forces the blocks of a query row."""
    device = device_of(scores)
    _require_hopper(device)
    queries = plan.batch * geometry.query_rows
    cluster = cluster or cluster_for(queries, geometry.context_tokens, _sms(device))
    load_kernel(
        device,
        "index_top_k.cu",
        "index_top_k",
        top_k_constants(geometry, cluster),
        threads=TOP_K_THREADS,
        shared_bytes=TOP_K_SHARED_BYTES,
        cluster=cluster,
    ).launch(
        torch.cuda.current_stream(device),
        queries * cluster,
        scores.data_ptr(),
        plan.seats.data_ptr(),
        state.lengths.data_ptr(),
        plan.picks.data_ptr(),
        i32(geometry.seats),
        i32(geometry.context_tokens),
        i64(scores.stride(1)),
    )


def append_keys(
    geometry: Geometry, keys: IndexKeys, state: SeatState, plan: StepPlan, values: Tensor, *, page_map: Tensor
) -> None:
    """As `reference.append_index_keys`, on the current stream."""
    device = device_of(values)
    _require_hopper(device)
    rows = int(values.shape[1])
    load_kernel(device, "index_keys.cu", "append_keys", _key_constants(values), threads=_KEY_THREADS).launch(
        torch.cuda.current_stream(device),
        -(-plan.batch * rows // (_KEY_THREADS // _WARP)),
        values.data_ptr(),
        keys.pages.data_ptr(),
        page_map.data_ptr(),
        plan.seats.data_ptr(),
        state.lengths.data_ptr(),
        i32(plan.batch),
        i32(rows),
        i32(geometry.seats),
        i32(geometry.context_tokens),
        i32(geometry.map_pages),
        i32(keys.page_count),
        i64(keys.pages.stride(0)),
    )


def write_keys(keys: IndexKeys, values: Tensor, pages: Tensor, *, first_token: int = 0) -> None:
    """As `reference.write_index_keys`, on the current stream."""
    device = device_of(values)
    _require_hopper(device)
    tokens = int(values.shape[0])
    load_kernel(device, "index_keys.cu", "write_keys", _key_constants(values), threads=_KEY_THREADS).launch(
        torch.cuda.current_stream(device),
        min(_KEY_BLOCKS, -(-tokens // (_KEY_THREADS // _WARP))),
        values.data_ptr(),
        keys.pages.data_ptr(),
        pages.data_ptr(),
        i32(tokens),
        i64(first_token),
        i32(keys.page_count),
        i64(keys.pages.stride(0)),
    )


def cluster_for(queries: int, context_tokens: int, sms: int) -> int:
    """Blocks of a query row: all at once on the SMs, each with tokens enough to be worth it.

    A cluster lies within one part of the GPU, whose SMs a large one does not fill: pairs may take all SMs, more blocks
    half of them. 32 clusters of four, or 16 of eight, took twice the time of half as many on 132 SMs.
    """
    cluster = 1
    while cluster < _MAX_CLUSTER and 2 * cluster * _LEAST_SHARE_TOKENS <= context_tokens:
        if 2 * cluster * queries > (sms if cluster == 1 else sms // 2):
            break
        cluster *= 2
    return cluster


def _key_constants(values: Tensor) -> Constants:
    return (("PAGE", PAGE_ROWS), ("VALUE_BYTES", values.element_size()))


def _require_hopper(device: int) -> None:
    major, minor = torch.cuda.get_device_capability(device)
    if major * 10 + minor < _MIN_SM:
        name = torch.cuda.get_device_name(device)
        text = f"{name} has compute capability {major}.{minor}; the indexer's kernels need {_MIN_SM // 10}.0 or newer"
        raise DeviceUnavailable(f"{text}; use CPU tensors, which run the reference")


def _sms(device: int) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
