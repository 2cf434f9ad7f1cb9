"""How a command ends that is told to from outside.

::

    SIGINT   ─► KeyboardInterrupt ─► Ended(SIGINT)      exit code 130
    SIGTERM  ─► as every program, at once; 143 where there is something to give back first (`cancelling`), or to keep
                (`ended_by_sigterm`)
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Ended(BaseException):
    """A signal ended the command; no error of ours, so no `except Exception` may hold it up.

    Attributes:
        exit_code: 128 and the signal's number, as shells have it.
        text: What people are told.
    """

    def __init__(self, number: int, left: str = "") -> None:
        self.exit_code = 128 + number
        word = "interrupted" if number == signal.SIGINT else "told to stop"
        self.text = f"{word}; {left}" if left else word
        super().__init__(self.text)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Raise `Ended` on SIGTERM, as Ctrl-C raises, so that what is on its way out can keep what it has."""

    def end(number: int, _: object) -> None:
        raise Ended(number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def cancelling() -> Iterator[None]:
    """Cancel the running task on SIGINT or SIGTERM, so that it can clean up, and raise `Ended` once it has.

    What the cancellation carries as its text is told to the user.
    """
    import asyncio  # noqa: PLC0415 - it takes as long to import as the rest of the program, and most commands need none

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    got: list[int] = []

    def cancel(number: int) -> None:
        got.append(number)
        if task is not None:
            task.cancel()

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, cancel, number)
    try:
        yield
    except asyncio.CancelledError as cut:
        if not got:
            raise
        raise Ended(got[0], str(cut)) from None
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
