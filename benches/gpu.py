"""What GPU benchmarks share; most of it is the package's own, as `hisparse-svc bench` needs it too."""

import time

from hisparse_svc.bench.gpu import HostRegion, Timer

__all__ = ["HostRegion", "Timer", "note"]

_START = time.time()


def note(*words: object) -> None:
    """Print a line with the seconds since the start."""
    print(f"[{time.time() - _START:6.1f}s]", *words, flush=True)
