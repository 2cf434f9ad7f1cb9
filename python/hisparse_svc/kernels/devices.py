"""Devices by name: what torch would refuse in its own words, later and elsewhere, is refused here with what to do."""

from __future__ import annotations

import torch

from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kernels.errors import DeviceUnavailable

__all__ = ["demand_cuda", "usable_device"]

_KINDS = ("cpu", "cuda", "meta")  # meta: shapes alone, as for a plan's bytes


def usable_device(device: torch.device | str) -> torch.device:
    """Give a device that this machine has.

    Args:
        device: `"cpu"`, `"cuda"` or `"cuda:N"`; torch's `"meta"` too, which only counts.

    Raises:
        InvalidInput: Another kind of device, or no device at all.
        DeviceUnavailable: A GPU that is not here.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        found = None
    if found is None or found.type not in _KINDS:
        rule = 'must be "cpu", "cuda" or "cuda:N"'
        raise InvalidInput([Problem("device", str(device), rule, "decode on a CUDA GPU, or on the CPU")])
    if found.type == "cuda":
        demand_cuda('decode on "cpu", which runs the reference kernels, or on a machine with a GPU')
        if found.index is not None and found.index >= (there := torch.cuda.device_count()):
            raise DeviceUnavailable(f"{found} is not here: this machine has {there}; use cuda:0 to cuda:{there - 1}")
    return found


def demand_cuda(remedy: str) -> None:
    """Refuse a machine without CUDA.

    Args:
        remedy: What to do about it.

    Raises:
        DeviceUnavailable: torch finds no CUDA device.
    """
    if not torch.cuda.is_available():
        raise DeviceUnavailable(f"there is no CUDA device here; {remedy}")
