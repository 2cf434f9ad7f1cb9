"""The picks of a decoding model as a top-k stream: what `simulate` judges policies by.

::

    HostKv ── picks of each pass and layer that has an indexer ──► Recorder ──► file ──► hisparse-svc simulate
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hisparse_svc.topk import Recorder

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from hisparse_svc.engine import Running
    from hisparse_svc.integrations.transformers.kv import HostKv

__all__ = ["record_picks"]


@contextmanager
def record_picks(kv: HostKv, path: str | os.PathLike[str], **source: Any) -> Iterator[Recorder]:
    """Record what every request picks in each decode step while the block runs; costs a copy to the host per layer.

    Requests that decode in one pass, or in passes that name nobody twice, are in one step. A pass that fails leaves its
    picks in the stream, and so does the one that takes it again.

    Args:
        kv: Whose requests.
        path: The file; it appears when the block ends, and a run that fails leaves none.
        source: How the stream was made, as plain data: kept in it.
    """
    shape, config = kv.session.shape, kv.model.config
    layers = [layer for layer in range(shape.layers) if shape.place(layer)[1] == 0]
    before = kv.on_picks
    with Recorder(path, layers=layers, top_k=config.index_topk, model=config.model_type, source=source) as recorder:
        kv.on_picks = _Told(recorder)
        try:
            yield recorder
        finally:
            kv.on_picks = before


class _Told:
    """Tells a recorder of picks, with a name and a step for each."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._names: dict[Running, str] = {}
        self._step = 0
        self._in_step: set[Running] = set()

    def __call__(self, layer: int, requests: Sequence[Running], picks: Tensor) -> None:
        if layer == 0:
            if not self._in_step.isdisjoint(requests):
                self._step += 1
                self._in_step.clear()
            self._in_step.update(requests)
        for request, picked in zip(requests, picks.cpu(), strict=True):
            if request not in self._names:
                self._names[request] = str(len(self._names))
                self._recorder.join(self._names[request], request.length)
            self._recorder.record(self._step, layer, self._names[request], picked, length=request.length + 1)
