"""A replica of Ray Serve that has a node, and holds a lease for as long as a request streams.

::

    async def __call__(self, request):                       the stream ends, fails, is closed or cancelled
        async with self.lease(4096, 256) as held:  ─ Admit, Commit ─ Renew … ─ Release, in a task that is not cancelled
            ...
            yield token

    the replica dies     its own node (start_node) dies with it, and all that it held
                         a sidecar it is attached to (attach_node) sees its session end, and with it the leases, at once
                         another one (use_node) sees nothing: the ttl ends the lease
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from hisparse_svc import aio
from hisparse_svc.engine.host_pool import HostPool
from hisparse_svc.errors import HiSparseError, InvalidInput, Problem
from hisparse_svc.integrations.ray.replicas import TARGET
from hisparse_svc.node import Node
from hisparse_svc.rpc.refusals import StaleEpoch

if TYPE_CHECKING:
    from types import TracebackType

LEASE_TTL_S = 10.0
"""Life of a lease between two renewals, where no session keeps it.

One of a dead replica is in use so long in a sidecar's ledger. Then its pages are quarantined for `quarantine_bound_ms`
of `GetServerInfo`, as of every committed lease that nobody released: somebody may still be writing to them."""


class NodeReplica:
    """What a deployment's class inherits, to be served through `CapacityRouter`.

    Call `start_node`, `attach_node` or `use_node` in `__init__`.
    """

    _node: Node | None = None
    _pool: HostPool | None = None
    _session: bytes | None = None
    _target: str | None = None
    _client: aio.Client | None = None

    def start_node(self, **settings: Any) -> Node:
        """Start a node in this replica; it ends with the replica, however that ends.

        Args:
            settings: Those of `Node.embedded`.

        Raises:
            InvalidInput: Everything wrong with them.
        """
        self._node = Node.embedded(**settings)
        self.use_node(self._node.target)
        return self._node

    def attach_node(self, target: str, *, engine_id: str = "engine") -> HostPool:
        """Use a node beside this replica that outlives it, and be the writer of its pool.

        Leases are then kept by this process's session, and end with it at once, however it dies: nothing is renewed.
        Their pages come back after the node's `--reclaim-window`. One replica at a time can be a pool's writer.

        Args:
            target: The node's Unix socket, `unix:PATH`; it owns memory (`--backing memory`).
            engine_id: As of `HostPool.attach`.

        Returns:
            The pool, mapped here. It is closed when Ray retires the replica.

        Raises:
            AttachFailed: Nobody listens there, or the node owns no memory; `AttachRefused` where it says no.
        """
        self._pool = HostPool.attach(target, engine_id=engine_id)
        self.use_node(target, session=self._pool.token)
        return self._pool

    def use_node(self, target: str, *, session: bytes | None = None) -> None:
        """Use a node that runs beside this replica, and outlives it.

        It does not notice when this replica dies: `attach_node` where it is to.

        Args:
            target: Where it is: `unix:PATH`, or `HOST:PORT` where routers on other machines are to see it.
            session: Token of the session that keeps leases there: `HostPool.token` of an engine in another process.
        """
        self._target, self._session = target, session

    def record_replica_metadata(self) -> dict[str, Any]:
        """Tell routers where the node is; Ray asks once, when the replica is ready.

        Raises:
            InvalidInput: It has none.
        """
        return {TARGET: self._node_target()}

    def _node_target(self) -> str:
        if self._target is None:
            remedy = "call start_node, attach_node or use_node in __init__"
            raise InvalidInput([Problem("node", "missing", "must be there before the first request", remedy)])
        return self._target

    def lease(
        self,
        prompt_tokens: int = 0,
        max_new_tokens: int = 0,
        *,
        wait_s: float = 0.0,
        lease_ttl_s: float | None = None,
        **request: Any,
    ) -> StreamLease:
        """Hold a lease for the length of an `async with` block.

        Args:
            prompt_tokens: Tokens of the prompt.
            max_new_tokens: Most tokens it may produce.
            wait_s: How long to wait in this node's line.
            lease_ttl_s: Life between two renewals, which the block makes by itself. By default the session keeps the
                lease and nothing is renewed, where there is one; elsewhere it is `LEASE_TTL_S`.
            request: What else `Client.admit` takes: `request_id`, `tenant`, `priority`, …

        Raises:
            Refused: On entry, why the node does not take it.
        """
        if self._client is None:  # made here: it belongs to the event loop that user code runs in
            self._client = aio.Client(self._node_target(), session=self._session)
        if lease_ttl_s is None and self._session is None:
            lease_ttl_s = LEASE_TTL_S
        pending = self._client.admit(prompt_tokens, max_new_tokens, wait_s=wait_s, **request)
        return StreamLease(self._client, pending, lease_ttl_s)

    def __del__(self) -> None:
        """Stop or leave the node when Ray retires the replica."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None
        if self._node is not None:
            self._node.stop()
            self._node = None


class StreamLease:
    """A lease that is committed, renewed and released by the block it is held in."""

    def __init__(self, client: aio.Client, pending: aio.PendingLease[aio.HeldLease], lease_ttl_s: float | None) -> None:
        self._client, self._pending, self._ttl_s = client, pending, lease_ttl_s
        self._held: aio.HeldLease | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> aio.HeldLease:
        """Admit and commit."""
        self._held = held = await self._pending
        try:
            await held.commit(self._ttl_s)
        except BaseException:
            await self._end()
            raise
        if self._ttl_s is not None:
            self._renewing = asyncio.create_task(self._renew(held, self._ttl_s))
        return held

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release; a second cancellation does not take the release with it."""
        await self._end(error)

    async def _end(self, error: BaseException | None = None) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        self._ending = asyncio.create_task(self._release(error))
        await asyncio.shield(self._ending)

    async def _release(self, error: BaseException | None) -> None:
        assert self._held is not None  # noqa: S101 - a block that was not entered is not left
        await self._held.__aexit__(type(error) if error else None, error, None)

    async def _renew(self, held: aio.HeldLease, ttl_s: float) -> None:
        while True:
            await asyncio.sleep(ttl_s / 3)
            with contextlib.suppress(HiSparseError):  # the next try, or the ttl
                try:
                    await held.renew(ttl_s)
                except StaleEpoch:  # its node was started again: a lease that it remembers goes on, in the new epoch
                    now = await self._client.get_lease(held.lease.id, tenant=held.lease.tenant)
                    if now.extents == held.lease.extents:
                        held.lease = now
                        await held.renew(ttl_s)
