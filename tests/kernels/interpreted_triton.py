"""Run the Triton backend on the CPU, by Triton's interpreter, and print how far each case is off.

A program of its own: Triton must be told to interpret before a kernel is defined. `python -m` it from the root.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton.language as tl
from hisparse_svc.kernels import triton_decode
from hisparse_svc.kernels.decode.call import make_call
from triton.runtime import interpreter

from tests.kernels.decode_cases import SCALE, edge_cases

CASES = {
    11: ("one request without picks", "numbers that are no row", "infinite sink", "counts", "some rows never written"),
    40: ("top-k not a multiple of anything",),
}
"""Edge cases by heads."""


def repair_interpreter() -> None:
    """Let Triton 3.6 interpret loop bounds under NumPy 2.4, and products of bfloat16, which it holds as bits."""
    plain: Any = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        plain(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def numbers(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle.data
        return (handle.data.astype(np.uint32) << 16).view(np.float32)

    def dot(_: Any, a: Any, b: Any, d: Any, *__: Any) -> Any:
        return interpreter.TensorHandle(np.matmul(numbers(a), numbers(b), dtype=np.float32) + d.data, d.dtype.scalar)

    interpreter._patch_lang_tensor = patch
    interpreter.InterpreterBuilder.create_dot = dot


def errors(kind: str, heads: int, name: str) -> tuple[float, float]:
    """Relative error of the output, and the largest of the LSE; infinite where what must be empty is not."""
    case = edge_cases(kind, heads)[name].poisoned()
    call = make_call(**case.arguments(), scale=SCALE, out=None, lse=None, max_sms=8)
    triton_decode.sparse_mla_decode(call)
    out, lse = case.oracle()
    empty = lse == -torch.inf
    if not torch.equal(call.lse == -torch.inf, empty) or bool(call.out[empty].any()):
        return float("inf"), float("inf")
    off = (call.lse.double() - lse)[~empty].abs()
    return float((call.out.double() - out).norm() / out.norm().clamp_min(1e-30)), float(off.max()) if len(off) else 0.0


def main() -> None:
    """Print a JSON object of all cases."""
    repair_interpreter()
    torch.cuda.device = lambda _: contextlib.nullcontext()  # type: ignore[assignment, misc]
    cases = [(kind, heads, name) for kind in ("fp8", "bf16") for heads, names in CASES.items() for name in names]
    found = {f"{kind}, {heads} heads, {name}": errors(kind, heads, name) for kind, heads, name in cases}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
