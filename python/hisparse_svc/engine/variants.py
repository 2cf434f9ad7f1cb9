"""One step captured in several ways, and the choice between them: by what their replays took, for each kind of load.

::

    load (batch, misses) ──► every variant a few times ──► the fastest, until
                                                             now and then another is tried again ──► and was faster

A variant that loses is not replayed but for those tries: overlap is off where it does not pay.
"""

from __future__ import annotations

import statistics
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hisparse_svc.errors import InvalidInput, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

__all__ = ["Choice", "Variants", "load_of"]

TRIALS = 3
"""Replays of each variant before the first choice."""

WINDOW = 9
"""Last replays of a variant that count; their median does."""

TRY_EVERY = 256
"""Replays of one load from one try of a losing variant to the next."""

MARGIN = 0.02
"""Share by which another variant must be faster to take over."""

MAX_LOADS = 1024
"""Loads remembered; the one not seen for longest is forgotten."""


def load_of(batch: int, misses: int) -> tuple[int, int]:
    """Give the kind of load of a step: its batch, and the order of magnitude of its misses in powers of two.

    Raises:
        InvalidInput: Misses that are no count.
    """
    if type(misses) is not int or misses < 0:
        rule = "must be a whole number, 0 or more"
        raise InvalidInput([Problem("misses", repr(misses), rule, "give the missing rows over the batch")])
    return batch, misses.bit_length()


@dataclass
class _Load:
    took: dict[str, deque[float]]
    favourite: str
    replays: int = 0
    tried: int = field(default=0)


class Choice:
    """Which variant to take for a load. It looks at times alone and has no clock.

    Example:
        >>> choice = Choice(["serial", "overlapped"])
        >>> for us in (50, 40) * 3:
        ...     choice.record("load", choice.choose("load"), us)
        >>> choice.choose("load")
        'overlapped'
    """

    def __init__(self, variants: Sequence[str]) -> None:
        """Start knowing nothing.

        Args:
            variants: Names; the first is the favourite where all are equally fast.

        Raises:
            InvalidInput: No variant, or one twice.
        """
        if not variants or len(set(variants)) != len(variants):
            rule = "must name at least one variant, each once"
            raise InvalidInput([Problem("variants", str(list(variants)), rule, "name what was captured")])
        self._variants = tuple(variants)
        self._loads: OrderedDict[Hashable, _Load] = OrderedDict()

    def choose(self, load: Hashable) -> str:
        """Give the variant to replay next."""
        seen = self._load(load)
        seen.replays += 1
        least = min(self._variants, key=lambda variant: len(seen.took[variant]))
        if len(seen.took[least]) < TRIALS:
            return least
        if seen.replays % TRY_EVERY == 0:
            others = [variant for variant in self._variants if variant != seen.favourite]
            if others:
                seen.tried += 1
                return others[seen.tried % len(others)]
        return seen.favourite

    def record(self, load: Hashable, variant: str, took_us: float) -> None:
        """Say what a replay took.

        Raises:
            InvalidInput: A variant that is none of these.
        """
        if variant not in self._variants:
            rule = f"must be one of {', '.join(self._variants)}"
            raise InvalidInput([Problem("variant", str(variant), rule, "name one that was captured")])
        seen = self._load(load)
        seen.took[variant].append(took_us)
        known = [name for name in self._variants if len(seen.took[name]) >= TRIALS]
        best = min(known, key=lambda name: statistics.median(seen.took[name]), default=seen.favourite)
        if len(known) == len(self._variants) and self._gains(seen, best):
            seen.favourite = best

    def favourite(self, load: Hashable) -> str:
        """Give the variant that is fastest so far."""
        return self._load(load).favourite

    def _load(self, load: Hashable) -> _Load:
        if load not in self._loads:
            took: dict[str, deque[float]] = {variant: deque(maxlen=WINDOW) for variant in self._variants}
            self._loads[load] = _Load(took, self._variants[0])
            if len(self._loads) > MAX_LOADS:
                self._loads.popitem(last=False)
        self._loads.move_to_end(load)
        return self._loads[load]

    @staticmethod
    def _gains(seen: _Load, name: str) -> bool:
        return statistics.median(seen.took[name]) < (1 - MARGIN) * statistics.median(seen.took[seen.favourite])


class Variants:
    """Captured variants of one step, each timed as it is replayed. Nothing waits: a time is read once it is there.

    Attributes:
        choice: What is known of them.
    """

    def __init__(self, replays: Mapping[str, Callable[[], None]], *, on_gpu: bool = True) -> None:
        """Take the variants.

        Args:
            replays: How to replay each, `graph.replay`; they do the same, bit for bit or nearly.
            on_gpu: They are GPU work, to be timed by events on the current stream.

        Raises:
            InvalidInput: There is none.
            DeviceUnavailable: They are GPU work, and there is no GPU.
        """
        self.choice = Choice(tuple(replays))
        if on_gpu:
            from hisparse_svc.kernels import demand_cuda  # noqa: PLC0415 - choosing needs no torch

            demand_cuda("pass on_gpu=False, which times the host's clock")
        self._replays = dict(replays)
        self._on_gpu = on_gpu
        self._pending: deque[tuple[Hashable, str, Any, Any]] = deque()

    def replay(self, load: Hashable) -> str:
        """Replay the best variant for a load, or one that is to be tried; give its name."""
        self._settle()
        variant = self.choice.choose(load)
        if not self._on_gpu:
            start = time.perf_counter()
            self._replays[variant]()
            self.choice.record(load, variant, (time.perf_counter() - start) * 1e6)
            return variant
        start_event, end_event = _event(), _event()
        start_event.record()
        self._replays[variant]()
        end_event.record()
        self._pending.append((load, variant, start_event, end_event))
        return variant

    def _settle(self) -> None:
        while self._pending and self._pending[0][3].query():
            load, variant, start, end = self._pending.popleft()
            self.choice.record(load, variant, start.elapsed_time(end) * 1e3)


def _event() -> Any:
    import torch  # noqa: PLC0415 - choosing needs no torch

    event: Any = torch.cuda.Event  # untyped in torch
    return event(enable_timing=True)
