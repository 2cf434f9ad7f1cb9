"""A decode step as a CUDA graph.

::

    capture   CPU: one eager run with nobody in the batch, which finds what is wrong with the body
              GPU: for each way to overlap: two such runs (kernels compile), then the graph
    replay    host: check, seats ──► the fastest graph: lengths, every layer, side streams joined ──► host: lengths
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from hisparse_svc.engine.layer_step import LayerStep, Overlap
from hisparse_svc.engine.variants import Variants, load_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hisparse_svc.engine.decode_memory import DecodeMemory
    from hisparse_svc.engine.running import Running
    from hisparse_svc.engine.stepping import Stepping

__all__ = ["CapturedStep"]


class CapturedStep:
    """A step that is captured once and replayed for any requests; on the CPU it runs eagerly each time.

    Attributes:
        batch: Requests of it, padded ones included.
        variants: Its graphs, and what is known of their times; none on the CPU.
    """

    def __init__(
        self,
        memory: DecodeMemory,
        stepping: Stepping,
        body: Callable[[LayerStep], None],
        batch: int,
        overlaps: Sequence[Overlap],
    ) -> None:
        self.batch = batch
        self.variants: Variants | None = None
        self._memory, self._stepping, self._body = memory, stepping, body
        self._first_overlap = overlaps[0]
        stepping.begin((), batch)
        if memory.cache.device.type != "cuda":
            self._run(self._first_overlap)
        else:
            self.variants = Variants({overlap.value: self._capture(overlap) for overlap in overlaps})

    def replay(self, requests: Sequence[Running]) -> None:
        """Take the requests one step further; the body's input tensors hold theirs, in this order.

        Raises:
            NotRunning: A request has no seat.
            InvalidInput: As `DecodeSession.step`.
        """
        with self._stepping.around(requests, self.batch):
            if self.variants is None:
                self._run(self._first_overlap)
                return
            with torch.cuda.device(self._memory.cache.device):  # replays are timed there
                self.variants.replay(load_of(len(requests), 0))

    def _capture(self, overlap: Overlap) -> Callable[[], None]:
        new_stream: Any = torch.cuda.Stream  # untyped in torch
        with torch.cuda.device(self._memory.cache.device):  # graphs are captured on the device that is current
            stream = new_stream()  # a capture must not be on the default stream
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    self._run(overlap)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._run(overlap)
        replay: Callable[[], None] = graph.replay
        return replay

    def _run(self, overlap: Overlap) -> None:
        step = LayerStep(self._memory, self._memory.cache.plan.first(self.batch), overlap)
        step.advance()
        self._body(step)
        step.finish()
