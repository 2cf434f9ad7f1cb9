"""Top-k streams: which tokens a model's indexers picked, step by step, in a compact file.

::

    engine ── Recorder.record ──┐
                                ├──► FILE.topk ── Stream ──► lanes ──► `hisparse_svc.simulate`
    Locality ── write_synthetic ┘

A lane is what one request picked in one layer (of layers that share an index, the one that has it). Needs numpy.
"""

from __future__ import annotations

from hisparse_svc import extras

with extras.needed(__name__, "simulate"):
    from hisparse_svc.topk.lane import NEWEST_TOKENS, Lane
    from hisparse_svc.topk.locality import PUBLISHED_MISSES, Locality
    from hisparse_svc.topk.recorder import Recorder
    from hisparse_svc.topk.stream import Stream
    from hisparse_svc.topk.synthetic import Synthetic, write_synthetic

__all__ = [
    "NEWEST_TOKENS",
    "PUBLISHED_MISSES",
    "Lane",
    "Locality",
    "Recorder",
    "Stream",
    "Synthetic",
    "write_synthetic",
]
