"""A decode step as a CUDA graph.

::

    capture   CPU: one eager run with nobody in the batch, which finds what is wrong with the body
              GPU: for each way to overlap: two such runs (kernels compile), then the graph
    replay    host: check, seats ──► the fastest graph: lengths, every layer, side streams joined ──► host: lengths
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from hisparse_svc.engine.layer_step import LayerStep, Overlap
from hisparse_svc.engine.variants import Variants, load_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from hisparse_svc.engine.decode_memory import DecodeMemory
    from hisparse_svc.engine.running import Running
    from hisparse_svc.engine.stepping import Stepping

__all__ = ["CapturedStep", "Steps"]


class Steps(Protocol):
    """What a captured step asks of its session; `DecodeSession` is one.

    Attributes:
        memory: Everything allocated.
        stepping: What surrounds a step's device work.
    """

    memory: DecodeMemory
    stepping: Stepping

    def step(self, requests: Sequence[Running], *, batch: int = 0) -> AbstractContextManager[LayerStep]:
        """Make one eager step."""


class CapturedStep:
    """A step that is captured once and replayed for any requests; on the CPU it runs eagerly each time.

    Attributes:
        batch: Requests of it, padded ones included.
        variants: Its graphs, and what is known of their times; none on the CPU.
    """

    def __init__(
        self, session: Steps, body: Callable[[LayerStep], None], batch: int, overlaps: Sequence[Overlap]
    ) -> None:
        self.batch = batch
        self.variants: Variants | None = None
        self._session = session
        self._body = body
        session.stepping.begin((), batch)
        if session.memory.cache.device.type != "cuda":
            self._run(overlaps[0])
        else:
            self.variants = Variants({overlap.value: self._capture(overlap) for overlap in overlaps})

    def replay(self, requests: Sequence[Running]) -> None:
        """Take the requests one step further; the body's input tensors hold theirs, in this order.

        Raises:
            NotRunning: A request has no seat.
            InvalidInput: As `DecodeSession.step`.
        """
        if self.variants is None:
            with self._session.step(requests, batch=self.batch) as step:
                self._body(step)
            return
        device = self._session.memory.cache.device
        with self._session.stepping.around(requests, self.batch), torch.cuda.device(device):  # replays are timed there
            self.variants.replay(load_of(len(requests), 0))

    def _capture(self, overlap: Overlap) -> Callable[[], None]:
        new_stream: Any = torch.cuda.Stream  # untyped in torch
        with torch.cuda.device(self._session.memory.cache.device):  # graphs are captured on the device that is current
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
        memory = self._session.memory
        step = LayerStep(memory, memory.cache.plan.first(self.batch), overlap)
        step.advance()
        self._body(step)
        step.finish()
