"""Which backend computes the logits, as data: what each can do, and in what order `auto` asks them.

::

    CPU tensors, fp32 keys             reference
    CUDA, compute capability 9.0       cuda          own kernel: wgmma and bulk copies are Hopper's
    CUDA, 9.0 and 10.0                 deep_gemm     the wheel, where its rules hold and a compiler is there

Picking the best from the logits has one kernel, whatever made them: no other is deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hisparse_svc.errors import Problem
from hisparse_svc.kernels.choice import first_able, installed, named
from hisparse_svc.kernels.geometry import MAX_QUERY_ROWS
from hisparse_svc.kernels.index.call import MAX_INDEX_HEADS
from hisparse_svc.kernels.index.keys import INDEX_F32, INDEX_FP8

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from hisparse_svc.kernels.index.call import IndexCall

__all__ = ["AUTO_ORDER", "BACKENDS", "Backend", "choose"]


@dataclass(frozen=True)
class Backend:
    """What one backend can do.

    Attributes:
        name: Its name.
        why: When `auto` takes it, and why then.
        run: Fills `call.logits`.
        formats: Formats of keys it reads.
        heads: Heads of a query that it takes.
        sms: Compute capabilities, major and minor as one number; none given: any device, also the CPU.
        query_rows: Query rows that it takes.
        packed_pages: Pages must lie without gaps.
        module: Package it needs.
    """

    name: str
    why: str
    run: Callable[[IndexCall], None]
    formats: frozenset[str] = frozenset({INDEX_FP8.name})
    heads: Container[int] = range(1, MAX_INDEX_HEADS + 1)
    sms: tuple[int, ...] = ()
    query_rows: Container[int] = range(1, MAX_QUERY_ROWS + 1)
    packed_pages: bool = False
    module: str = ""

    def refusals(self, call: IndexCall) -> list[Problem]:
        """Why it cannot answer a call, as far as the call itself is the reason."""
        found: list[Problem] = []

        def refuse(field: str, value: object, rule: str, remedy: str) -> None:
            found.append(Problem(field, str(value), f"{rule} for backend {self.name}", remedy))

        if call.keys.stored.name not in self.formats:
            names = " or ".join(sorted(self.formats))
            refuse("keys", f"{call.keys.stored.name} keys", f"must be {names}", "use backend reference")
        if self.sms and not call.q.is_cuda:
            refuse("q.device", call.q.device, "must be a CUDA device", "use backend reference")
        if call.heads not in self.heads:
            refuse("heads", call.heads, f"must be {_listed(self.heads)}", "pad heads whose weight is 0")
        if call.query_rows not in self.query_rows:
            refuse("query_rows", call.query_rows, f"must be {_listed(self.query_rows)}", "use backend cuda")
        if self.packed_pages and call.keys.pages.stride(0) != call.keys.stored.page_bytes:
            rule = f"must have a page every {call.keys.stored.page_bytes} bytes"
            refuse("keys.stride", call.keys.pages.stride(), rule, "use backend cuda")
        return found

    def missing(self, call: IndexCall) -> str:
        """What the machine lacks for it; empty where nothing."""
        if self.module and not installed(self.module):
            return f"backend {self.name} needs the package {self.module}"
        if self.sms and call.q.is_cuda:
            major, minor = torch.cuda.get_device_capability(call.q.device)
            if 10 * major + minor not in self.sms:
                return f"backend {self.name} does not run on compute capability {major}.{minor}"
        return ""


def _reference(call: IndexCall) -> None:
    from hisparse_svc.kernels import reference  # noqa: PLC0415 - reference is built on this package

    reference.index_logits(call)


def _cuda(call: IndexCall) -> None:
    from hisparse_svc.kernels.cuda import index  # noqa: PLC0415 - needs cuda-core

    index.logits(call)


def _deep_gemm(call: IndexCall) -> None:
    from hisparse_svc.kernels.index import deep_gemm  # noqa: PLC0415 - needs the wheel

    deep_gemm.logits(call)


BACKENDS = {
    backend.name: backend
    for backend in (
        Backend(
            "reference",
            "the CPU, and fp32 keys anywhere: plain torch in float64",
            _reference,
            formats=frozenset({INDEX_FP8.name, INDEX_F32.name}),
        ),
        Backend("cuda", "the own kernel, first on Hopper, whose wgmma and bulk copies it is made of", _cuda, sms=(90,)),
        Backend(
            "deep_gemm",
            "the wheel, where the own kernel does not run",
            _deep_gemm,
            heads=(32, 64),
            sms=(90, 100),
            query_rows=(1, 2),
            packed_pages=True,
            module="deep_gemm",
        ),
    )
}
"""Backends by name."""

AUTO_ORDER = ("cuda", "deep_gemm")
"""What `auto` asks in turn on a CUDA device; the reference would be slow there unnoticed."""


def _listed(allowed: Container[int]) -> str:
    return " or ".join(str(value) for value in range(1, MAX_INDEX_HEADS + 1) if value in allowed)


def choose(name: str, call: IndexCall) -> Backend:
    """Give the backend of a name, or the one that `auto` takes.

    Raises:
        InvalidInput: No such backend, or it cannot answer this call; says which can.
        DeviceUnavailable: The machine lacks what it needs.
    """
    if name != "auto":
        return named(name, BACKENDS, call)
    if not call.q.is_cuda or call.keys.stored is INDEX_F32:
        return named("reference", BACKENDS, call)
    return first_able([BACKENDS[name] for name in AUTO_ORDER], call)
