"""A fleet through both shells: every test that takes `fleet_of` runs with threads and with tasks."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hisparse_svc import fleet as blocking
from hisparse_svc.fleet import aio

from tests.serve.conftest import serve

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

__all__ = ["serve"]


class OnLoop:
    """The asyncio fleet on a loop in a thread, driven as if it were the blocking one."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

        async def make() -> aio.Fleet:
            return aio.Fleet(*arguments, **settings)

        try:
            self.fleet = self.run(make())
        except BaseException:
            self._end()
            raise

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=60)

    def admit(self, *arguments: Any, instead_of: Any = None, **more: Any) -> Any:
        async def ask() -> Any:
            given = instead_of.held if instead_of is not None else None
            return await self.fleet.admit(*arguments, instead_of=given, **more)

        return Held(self, self.run(ask()))

    def nodes(self) -> Any:
        return self.run(self.fleet.nodes())

    def rank(self, *arguments: Any, **more: Any) -> Any:
        return self.run(self.fleet.rank(*arguments, **more))

    def client(self, name: str) -> Any:
        return self.run(self.fleet.client(name))

    def wait_until_seen(self, timeout_s: float = 10.0) -> Any:
        return self.run(self.fleet.wait_until_seen(timeout_s))

    def close(self) -> None:
        self.run(self.fleet.close())
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Held:
    """Its lease."""

    def __init__(self, on: OnLoop, held: aio.HeldLease) -> None:
        self.on, self.held = on, held

    def __getattr__(self, name: str) -> Any:
        return getattr(self.held, name)

    def commit(self, ttl_s: float | None = None) -> Any:
        return self.on.run(self.held.commit(ttl_s))

    def release(self) -> Any:
        return self.on.run(self.held.release())


@pytest.fixture(params=[blocking.Fleet, OnLoop], ids=["threads", "tasks"])
def fleet_of(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Makes fleets, and closes them."""
    made: list[Any] = []

    def make(*arguments: Any, **settings: Any) -> Any:
        made.append(request.param(*arguments, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()
