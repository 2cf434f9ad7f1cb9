"""Numbers quantised to FP8, with one fp32 scale for each 128 of them: index keys, and the latent part of a row.

::

    128 numbers ── largest magnitude, at least 1e-4, over 448: scale ──► number / scale, rounded to e4m3
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kernels.kinds import demand_kinds, each

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SCALE_GROUP", "quantise"]

SCALE_GROUP = 128
"""Consecutive e4m3 values that share a scale."""

_LARGEST = torch.finfo(torch.float8_e4m3fn).max
_SMALLEST_AMAX = 1e-4
"""Keeps the scale of a group of zeros a normal number."""


def quantise(values: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise keys, or heads of queries, to FP8 with one scale for each 128 numbers.

    The scale of a query goes into its head's weight: logits are linear in it.

    Args:
        values: Numbers of any float type, `[..., 128]`.

    Returns:
        e4m3 values, `[..., 128]`, and fp32 scales, `[...]`: the largest magnitude, at least 1e-4, over 448.

    Raises:
        InvalidInput: No tensor of float numbers, or of another width.
    """
    demand_kinds(each(torch.Tensor, values=values))
    problems = []
    if values.shape[-1:] != (SCALE_GROUP,):
        rule = f"must end in {SCALE_GROUP}, the numbers that share a scale"
        problems.append(Problem("values.shape", str(tuple(values.shape)), rule, "pass keys, or heads of queries"))
    if not values.is_floating_point():
        problems.append(Problem("values.dtype", str(values.dtype), "must be a float type", "convert them to float32"))
    if problems:
        raise InvalidInput(problems)
    exact = values.float()
    scales = exact.abs().amax(-1).clamp_min(_SMALLEST_AMAX) / _LARGEST
    return (exact / scales.unsqueeze(-1)).to(torch.float8_e4m3fn), scales
