"""Ranks of one engine over one host copy: one writes, the others wait for what it wrote.

::

    writer   step n ── backups joined ── record ──► Ticket ─┐      with what the engine broadcasts before each step
    reader                                  wait(Ticket) ◄──┘── step n + 1

    wait     another process's event ──► a stream of the writer's GPU ── own event ──► the reader's stream

The detour is for readers on other GPUs: a stream that waits for another process's event of another GPU ends the process
with SIGSEGV in the driver (580.159). Opening the events costs a reader a CUDA context on the writer's GPU.

A reader fetches no token before it has left the newest page, `NEWEST_TOKENS` steps after it was written, so waiting
for the step before never costs time. A request leaves the readers first and the writer last: it is the writer that
gives the pages back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kernels import usable_device

__all__ = ["ReaderFence", "Ticket", "WriterFence"]

_EVENTS = 8


@dataclass(frozen=True)
class Ticket:
    """What a writer had written when it was made; small, and made to be sent.

    Attributes:
        number: How many were made before it.
    """

    number: int


class WriterFence:
    """The writer's side.

    Attributes:
        handles: What a reader needs to wait on this process's events; empty on the CPU, where a step that has returned
            has written.
    """

    def __init__(self, device: torch.device | str) -> None:
        """Make events that other processes can wait on.

        Args:
            device: Where the writer's session decodes.

        Raises:
            InvalidInput: A device that is none.
            DeviceUnavailable: A GPU that is not here.
        """
        self._events: list[Any] = []
        self._number = 0
        self.handles: tuple[bytes, ...] = ()
        self._device = usable_device(device)
        if self._device.type == "cuda":
            event: Any = torch.cuda.Event  # untyped in torch
            self._events = [event(enable_timing=False, interprocess=True) for _ in range(_EVENTS)]
            for one in self._events:
                one.record(torch.cuda.current_stream(self._device))  # before that it has no handle
            self.handles = tuple(one.ipc_handle() for one in self._events)

    def record(self) -> Ticket:
        """Make a ticket for everything that the current stream has been told to write, a session's steps included."""
        ticket = Ticket(self._number)
        if self._events:
            self._events[self._number % _EVENTS].record(torch.cuda.current_stream(self._device))
        self._number += 1
        return ticket


class ReaderFence:
    """A reader's side."""

    def __init__(
        self, handles: tuple[bytes, ...], writer_device: torch.device | str, *, device: torch.device | str | None = None
    ) -> None:
        """Open the writer's events.

        Args:
            handles: `WriterFence.handles`.
            writer_device: Where the writer's session decodes, as this process counts devices.
            device: Where this rank's decodes; the current device where not given.

        Raises:
            InvalidInput: The writer decodes on a GPU and gave no events, or the device is none.
            DeviceUnavailable: A GPU that is not here.
        """
        writers = usable_device(writer_device)
        self._device = usable_device(device) if device is not None else None
        self._relay: Any = None
        if writers.type == "cuda" and not handles:
            rule = "must be those of the writer's fence"
            raise InvalidInput([Problem("handles", "none", rule, "send WriterFence.handles to every rank")])
        event: Any = torch.cuda.Event  # untyped in torch, as is the stream
        self._events = [event.from_ipc_handle(writers, handle) for handle in handles]
        if handles:
            stream: Any = torch.cuda.Stream
            self._relay = stream(writers)

    def wait(self, ticket: Ticket) -> None:
        """Make this rank's current stream wait for what the writer had written; before a step, never within a capture.

        Args:
            ticket: The writer's last one, made before this step began.
        """
        if not self._events:
            return
        here: Any = torch.cuda.current_stream(self._device)
        # An event recorded anew since stands for more than this ticket: waiting for it is enough, too.
        written = self._events[ticket.number % _EVENTS]
        if here.device != self._relay.device:
            event: Any = torch.cuda.Event  # untyped in torch
            self._relay.wait_event(written)
            written = event()
            written.record(self._relay)
        here.wait_event(written)
