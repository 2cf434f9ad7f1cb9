"""How much of each request is in host memory, rows and index keys both.

::

    step n:  rows ── backup, behind the layers ──┐
             keys of a page that became full ────┤──► event ──► settle: durable_tokens, in whole pages
                 (once lengths are final)        ┘
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from hisparse_svc.kernels import PAGE_ROWS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hisparse_svc.engine.decode_memory import DecodeMemory
    from hisparse_svc.engine.running import Running

__all__ = ["Durability"]


class Durability:
    """Backs up index keys of full pages, and knows when what was copied is there."""

    def __init__(self, memory: DecodeMemory) -> None:
        self._memory = memory
        self._unsettled: list[tuple[Any, dict[Running, int]]] = []

    def confirm(self, requests: Sequence[Running]) -> None:
        """Back up index keys of pages that have become full: lengths are final, refused drafts taken back."""
        for request in requests:
            full = request.length // PAGE_ROWS
            self._memory.back_up_keys(request.pages[request.backed_up_pages : full])
            request.backed_up_pages = max(request.backed_up_pages, full)
        self.record(requests)

    def record(self, requests: Sequence[Running]) -> None:
        """Note that all copies started so far make these requests' backed up pages durable, once they are done."""
        done: Any = None
        if self._memory.cache.device.type == "cuda":
            event: Any = torch.cuda.Event  # untyped in torch
            done = event()
            done.record(torch.cuda.current_stream(self._memory.cache.device))
        self._unsettled.append((done, {request: request.backed_up_pages * PAGE_ROWS for request in requests}))

    def settle(self, *, wait: bool) -> None:
        """Bring `durable_tokens` up to date with the copies that are done, or wait for all."""
        while self._unsettled:
            done, lengths = self._unsettled[0]
            if done is not None:
                if wait:
                    done.synchronize()
                elif not done.query():
                    return
            for request, durable in lengths.items():
                request.durable_tokens = max(request.durable_tokens, durable)
            self._unsettled.pop(0)
