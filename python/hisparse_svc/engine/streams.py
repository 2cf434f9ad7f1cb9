"""A side stream that has a few SMs to itself, so that a gather neither spreads over the GPU nor waits for all of it.

::

    132 SMs   [ 8: partition_stream ── gather ][ 124 …: every other stream; they may use the 8 as well while idle ]

Optional: any stream serves as a side stream, and a gather's grid takes eight SMs wherever they are free.
"""

from __future__ import annotations

import functools
from typing import Any

from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kernels import DeviceUnavailable, demand_cuda

__all__ = ["partition_stream"]

_CLUSTER_SMS = 8
_kept: list[object] = []
"""Partitions live as long as the process: their streams may be captured in graphs."""


@functools.cache
def partition_stream(sms: int = _CLUSTER_SMS, device: int = 0) -> Any:
    """Give the stream of a partition of `sms` SMs; the same one each time.

    Args:
        sms: SMs, a multiple of eight: that is what a gather's cluster needs, and what a Hopper GPU splits by.
        device: CUDA device number.

    Raises:
        InvalidInput: Not a multiple of eight.
        DeviceUnavailable: No CUDA, a driver or torch without green contexts, or fewer SMs than asked for.
    """
    if sms < _CLUSTER_SMS or sms % _CLUSTER_SMS:
        raise InvalidInput([Problem("sms", str(sms), f"must be a multiple of {_CLUSTER_SMS}", f"use {_CLUSTER_SMS}")])
    import torch  # noqa: PLC0415 - the two below are looked for, not relied on

    demand_cuda("leave out the side stream")
    try:
        from torch.cuda.green_contexts import GreenContext  # noqa: PLC0415 - in beta, and not in every torch

        torch.zeros(1, device=f"cuda:{device}")  # makes the device's own context first
        context: Any = GreenContext.create(sms, device)
        stream = context.Stream()
    except (ImportError, RuntimeError, AttributeError) as failure:
        text = f"this GPU cannot be partitioned: {failure}; use an ordinary stream as the side stream"
        raise DeviceUnavailable(text) from failure
    _kept.append(context)
    return stream
