"""Which backend answers a call: the one that was asked for, or the first of an order that can.

::

    named   ──► refuses? ── yes ──► InvalidInput, with every reason
                  └─ no ──► lacks something? ── yes ──► DeviceUnavailable
    first   ──► each in turn; where none can, what the call got wrong counts before what the machine lacks
"""

from __future__ import annotations

import functools
import importlib.util
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kernels.errors import DeviceUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Able", "first_able", "installed", "named"]


class Able(Protocol):
    """What is asked of a backend before it is chosen."""

    def refusals(self, call: Any) -> list[Problem]:
        """Why it cannot answer a call, as far as the call itself is the reason."""

    def missing(self, call: Any) -> str:
        """What the machine lacks for it; empty where nothing."""


Backend = TypeVar("Backend", bound=Able)


@functools.cache
def installed(module: str) -> bool:
    """Say whether a module could be imported, without importing it; its package may be."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it is in is not there either
        return False


def named(name: str, backends: Mapping[str, Backend], call: object) -> Backend:
    """Give the backend of a name.

    Raises:
        InvalidInput: No such backend, or it cannot answer this call; says which can.
        DeviceUnavailable: The machine lacks what it needs.
    """
    if not isinstance(name, str) or name not in backends:
        rule = f"must be auto or one of {', '.join(backends)}"
        raise InvalidInput([Problem("backend", str(name), rule, "leave it out")])
    backend = backends[name]
    if problems := backend.refusals(call):
        raise InvalidInput(problems)
    if lacking := backend.missing(call):
        raise DeviceUnavailable(f"{lacking}; leave backend out to take what is here")
    return backend


def first_able(backends: Iterable[Backend], call: object) -> Backend:
    """Give the first of some backends that can answer a call.

    Raises:
        InvalidInput: Those that are here cannot answer this call.
        DeviceUnavailable: The machine lacks what any of them needs.
    """
    lacking, problems = [], []
    for backend in backends:
        refused, reason = backend.refusals(call), backend.missing(call)
        if not refused and not reason:
            return backend
        problems += refused if not reason else []
        lacking += [reason] if reason else []
    if problems:
        raise InvalidInput(problems)
    raise DeviceUnavailable(f"{'; '.join(lacking)}; use CPU tensors, or ask for backend reference, which is slow")
