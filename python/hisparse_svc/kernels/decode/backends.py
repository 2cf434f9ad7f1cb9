"""Which backend answers a call, as data: what each can do, and in what order `auto` asks them.

::

    CPU tensors                     reference
    CUDA, compute capability 9.0    cuda          own kernels: wgmma and bulk copies are Hopper's
    CUDA, 8.0 or newer              triton        FP8 needs 8.9
    CUDA, fp32 rows or queries      reference     for tests
    on request alone                flashmla      the wheel, where its rules hold; docs/decode.md has the comparison
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from hisparse_svc.errors import Problem
from hisparse_svc.kernels.choice import first_able, installed, named
from hisparse_svc.kernels.decode.rows import BF16_ROWS, F32_ROWS, FP8_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hisparse_svc.kernels.decode.call import DecodeCall

__all__ = ["AUTO_ORDER", "BACKENDS", "Backend", "choose"]

_ANY_SM = range(1000)


@dataclass(frozen=True)
class Backend:
    """What one backend can do.

    Attributes:
        name: Its name.
        why: When `auto` takes it, and why then.
        formats: Row formats it reads.
        run: Fills `call.out` and `call.lse`.
        sms: Compute capabilities, major and minor as one number; none: any device, also the CPU.
        fp8_sms: The same for FP8 rows.
        bf16_queries: Queries must be bfloat16.
        packed_rows: Rows must lie without gaps.
        top_k_multiples: Picks must be a multiple of this, per row format.
        rows_multiple: And rows of this.
        capped: Can leave SMs free (`max_sms`).
        beside_gather: Can start beside the gather of some of the rows (`DecodeCall.late`).
        module: Package it needs.
    """

    name: str
    why: str
    formats: frozenset[str]
    run: Callable[[DecodeCall], None]
    sms: range = _ANY_SM
    fp8_sms: range = _ANY_SM
    bf16_queries: bool = True
    packed_rows: bool = False
    top_k_multiples: Mapping[str, int] = field(default_factory=dict)
    rows_multiple: int = 1
    capped: bool = False
    beside_gather: bool = False
    module: str = ""

    def refusals(self, call: DecodeCall) -> list[Problem]:
        """Why it cannot answer a call, as far as the call itself is the reason."""
        found: list[Problem] = []

        def refuse(field: str, value: object, rule: str, remedy: str) -> None:
            found.append(Problem(field, str(value), f"{rule} for backend {self.name}", remedy))

        stored = call.stored
        if stored.name not in self.formats:
            names = " or ".join(sorted(self.formats))
            refuse("rows", f"{stored.name} rows", f"must be {names}", f"use {_able('formats', stored.name)}")
        if self.sms is not _ANY_SM and not call.q.is_cuda:
            refuse("q.device", call.q.device, "must be a CUDA device", "use backend reference")
        if self.bf16_queries and call.q.dtype is not torch.bfloat16:
            refuse("q.dtype", call.q.dtype, "must be torch.bfloat16", "convert it, or use backend reference")
        if self.packed_rows and call.rows.stride(0) != stored.row_bytes:
            rule = f"must have a row every {stored.row_bytes} bytes"
            refuse("rows.stride", call.rows.stride(), rule, "use a RowFormat without alignment, or backend cuda")
        multiple = self.top_k_multiples.get(stored.name, 1)
        if call.top_k % multiple:
            rule = f"must hold a multiple of {multiple} picks"
            refuse("picks.shape", tuple(call.picks.shape), rule, "pad picks with -1, or use backend cuda or triton")
        if call.rows.shape[0] % self.rows_multiple:
            rule = f"must hold a multiple of {self.rows_multiple} rows"
            refuse("rows.shape", tuple(call.rows.shape), rule, "use backend cuda or triton")
        if call.max_sms and not self.capped:
            refuse("max_sms", call.max_sms, "must be 0", "backends cuda and triton leave SMs free")
        return found

    def missing(self, call: DecodeCall) -> str:
        """What the machine lacks for it; empty where nothing."""
        if self.module and not installed(self.module):
            return f"backend {self.name} needs the package {self.module}"
        if call.q.is_cuda:
            major, minor = torch.cuda.get_device_capability(call.q.device)
            sms = self.fp8_sms if call.stored is FP8_ROWS else self.sms
            if 10 * major + minor not in sms:
                return f"backend {self.name} does not run {call.stored.name} rows on compute capability {major}.{minor}"
        return ""


def _reference(call: DecodeCall) -> None:
    from hisparse_svc.kernels import reference  # noqa: PLC0415 - reference is built on this package

    reference.sparse_mla_decode(call)


def _cuda(call: DecodeCall) -> None:
    from hisparse_svc.kernels.cuda import decode  # noqa: PLC0415 - needs cuda-core, which a CPU has no use for

    decode.sparse_mla_decode(call)


def _triton(call: DecodeCall) -> None:
    from hisparse_svc.kernels import triton_decode  # noqa: PLC0415 - Triton comes with torch's CUDA builds alone

    triton_decode.sparse_mla_decode(call)


def _flashmla(call: DecodeCall) -> None:
    from hisparse_svc.kernels import flashmla  # noqa: PLC0415

    flashmla.sparse_mla_decode(call)


_STORED = frozenset({FP8_ROWS.name, BF16_ROWS.name})
_HOPPER = range(90, 91)

BACKENDS = {
    backend.name: backend
    for backend in (
        Backend(
            "reference",
            "the CPU, and fp32 numbers anywhere: plain torch in float64",
            frozenset({FP8_ROWS.name, BF16_ROWS.name, F32_ROWS.name}),
            _reference,
            bf16_queries=False,
        ),
        Backend(
            "cuda",
            "Hopper: own kernels for any head count; docs/decode.md compares them",
            _STORED,
            _cuda,
            sms=_HOPPER,
            fp8_sms=_HOPPER,
            capped=True,
            beside_gather=True,
            module="cuda.core",
        ),
        Backend(
            "triton",
            "other GPUs: one source for all of them, bound by its instructions where the own kernels are by memory",
            _STORED,
            _triton,
            sms=range(80, 1000),
            fp8_sms=range(89, 1000),
            capped=True,
            module="triton",
        ),
        Backend(
            "flashmla",
            "on request: a wheel with rules of its own, kept to compare with (docs/decode.md)",
            _STORED,
            _flashmla,
            sms=_HOPPER,
            fp8_sms=_HOPPER,
            packed_rows=True,
            top_k_multiples={FP8_ROWS.name: 64, BF16_ROWS.name: 128},
            rows_multiple=64,
            module="flash_mla",
        ),
    )
}
"""Backends by name."""

AUTO_ORDER = ("cuda", "triton")
"""What `auto` asks on a CUDA device, in turn; `reference` answers fp32 alone there, as it would be slow unnoticed."""


def _able(attribute: str, value: str) -> str:
    names = [name for name, backend in BACKENDS.items() if value in getattr(backend, attribute)]
    return "backend " + " or ".join(names)


def choose(name: str, call: DecodeCall) -> Backend:
    """Give the backend of a name, or the one that `auto` takes.

    Raises:
        InvalidInput: No such backend, or it cannot answer this call; says which can.
        DeviceUnavailable: The machine lacks what it needs.
    """
    if name != "auto":
        return named(name, BACKENDS, call)
    if not call.q.is_cuda or call.stored is F32_ROWS or call.q.dtype is not torch.bfloat16:
        return named("reference", BACKENDS, call)
    return first_able([BACKENDS[name] for name in AUTO_ORDER], call)
