"""Where a replay asks: one node, or many as one.

::

    _Run ─ admit, release ─► OneNode   an aio.Client            ManyNodes   an aio Fleet: each lease says its node
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from hisparse_svc.fleet.errors import AllDraining, FleetBusy, NeverFitsAnywhere, NoNodeAnswers, RetriesSpent
from hisparse_svc.rpc.refusals import Unreachable

if TYPE_CHECKING:
    from hisparse_svc import aio
    from hisparse_svc.fleet import NodeView
    from hisparse_svc.fleet import aio as fleets

VIEW_LAG_S = 0.25
"""What a fleet's views may lag behind a release: a replay that lets no time pass must not count it as a refusal."""


class Desk(Protocol):
    """What a replay needs."""

    async def begin(self) -> tuple[int, dict[str, int]]:
        """Give tokens per page, and the host pages of each node by its name."""
        ...

    async def admit(self, prompt: int, output: int, *, wait_s: float, **more: Any) -> aio.HeldLease:
        """Reserve, or raise as `aio.Client.admit`."""
        ...

    async def finish(self, held: Any) -> bool:
        """Give a lease back; whether its node was there to take it."""
        ...

    async def release(self, request_id: str) -> None:
        """Give back what a request may hold."""
        ...

    def node_of(self, held: Any) -> str:
        """Name the node that a lease is on."""
        ...


class OneNode:
    """One server."""

    def __init__(self, client: aio.Client) -> None:
        self._client = client

    async def begin(self) -> tuple[int, dict[str, int]]:
        """As `Desk.begin`."""
        info, capacity = await self._client.server_info(), await self._client.get_capacity()
        return info.page_tokens, {"": capacity.pool("host_pages").total}

    async def admit(self, prompt: int, output: int, *, wait_s: float, **more: Any) -> aio.HeldLease:
        """As `Desk.admit`; the server's own line is waited in."""
        return await self._client.admit(prompt, output, wait_s=wait_s, **more)

    async def finish(self, held: Any) -> bool:
        """As `Desk.finish`; without its one node a replay ends."""
        await held.release()
        return True

    async def release(self, request_id: str) -> None:
        """As `Desk.release`."""
        await self._client.release(request_id=request_id)

    def node_of(self, held: Any) -> str:
        """As `Desk.node_of`."""
        del held
        return ""


class ManyNodes:
    """A fleet."""

    def __init__(self, fleet: fleets.Fleet) -> None:
        self._fleet = fleet

    async def begin(self) -> tuple[int, dict[str, int]]:
        """As `Desk.begin`; nodes that do not answer are none of it."""
        await self._fleet.wait_until_seen()
        self._fleet.check()
        seen = {node.name: node.capacity for node in await self._answering() if node.capacity is not None}
        totals = {name: capacity.pool("host_pages").total for name, capacity in seen.items()}
        info = await (await self._fleet.client(next(iter(totals)))).server_info()
        return info.page_tokens, totals

    async def admit(self, prompt: int, output: int, *, wait_s: float, **more: Any) -> aio.HeldLease:
        """As `Desk.admit`; the views are waited for."""
        try:
            return await self._fleet.admit(prompt, output, wait_s=max(wait_s, VIEW_LAG_S), **more)
        except (AllDraining, RetriesSpent) as refused:
            raise FleetBusy(str(refused), reason="POOL_BUSY") from None
        except NoNodeAnswers as silent:
            if not await self._answering():
                raise
            raise NeverFitsAnywhere(str(silent), reason="NEVER_FITS") from None  # on those that answer

    async def finish(self, held: Any) -> bool:
        """As `Desk.finish`; a lease ends with its node, or by its ttl where it only looks dead."""
        try:
            await held.release()
        except Unreachable:
            return False
        return True

    async def _answering(self) -> list[NodeView]:
        return [node for node in await self._fleet.nodes() if node.state not in ("silent", "unseen")]

    async def release(self, request_id: str) -> None:
        """As `Desk.release`, on every node that answers."""
        for node in await self._answering():
            with contextlib.suppress(Unreachable):  # it has just died
                await (await self._fleet.client(node.name)).release(request_id=request_id)

    def node_of(self, held: Any) -> str:
        """As `Desk.node_of`."""
        name: str = held.node
        return name
