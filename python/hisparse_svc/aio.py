"""Talk to a service from asyncio: the same calls as `hisparse_svc.Client`, awaited.

::

    async with aio.Client() as client:
        async with client.admit(prompt_tokens=4096, max_new_tokens=256) as held:
            ...                                     # or: held = await client.admit(…)

What `admit` gives is a coroutine: `asyncio.create_task`, `gather`, `wait_for` and `timeout` take it. Cancelled before
its answer is here, it releases what its request id stands for, and then raises; a lease in hand is its holder's.

What each call means, takes and raises is written once, in `hisparse_svc.client`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import grpc
import grpc.aio

from hisparse_svc.errors import HiSparseError
from hisparse_svc.rpc import calls, retry, status, tracing, unreachable, values
from hisparse_svc.rpc.channel import callable_of, dial, of_session
from hisparse_svc.rpc.refusals import CLOSED, Unreachable
from hisparse_svc.rpc.target import resolve
from hisparse_svc.rpc.tls import resolve as resolve_tls
from hisparse_svc.rpc.watching import ENDED, Watching

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Iterable, Sequence
    from types import TracebackType

    from google.protobuf.message import Message

    from hisparse_svc._proto import capacity_pb2
    from hisparse_svc.rpc.calls import Call
    from hisparse_svc.rpc.tls import Tls

Answer = TypeVar("Answer", bound="Message")
Value = TypeVar("Value")
Held = TypeVar("Held", bound="HeldLease")

__all__ = ["Client", "HeldLease", "PendingLease"]


class Client:
    """A connection to one service; make it inside the event loop that uses it.

    Arguments are those of `hisparse_svc.Client`.
    """

    def __init__(
        self,
        target: str | None = None,
        *,
        timeout_s: float = calls.TIMEOUT_S,
        tls: Tls | None = None,
        session: bytes | None = None,
    ) -> None:
        self.target = resolve(target)
        certificates = resolve_tls(tls, self.target)
        self.timeout_s = calls.timeout(timeout_s)
        self._secure = certificates is not None
        self._session = of_session(session)
        self._closed = False
        self._undoing: set[asyncio.Task[None]] = set()
        self._channel = dial(grpc.aio, self.target, certificates)

    async def get_capacity(self, lengths: Iterable[int] = (), *, tenant: str = "") -> values.Capacity:
        """As `hisparse_svc.Client.get_capacity`."""
        return await self._run(calls.get_capacity(lengths, tenant))

    async def watch_capacity(self, lengths: Iterable[int] = (), *, tenant: str = "") -> AsyncGenerator[values.Capacity]:
        """As `hisparse_svc.Client.watch_capacity`."""
        async with contextlib.aclosing(self.watch_messages(lengths, tenant=tenant)) as messages:
            async for _, seen in messages:
                if seen is not None:
                    yield seen

    async def watch_messages(
        self, lengths: Iterable[int] = (), *, tenant: str = ""
    ) -> AsyncGenerator[tuple[capacity_pb2.WatchCapacityResponse, values.Capacity | None]]:
        """As `hisparse_svc.Client.watch_messages`."""
        watching = Watching(lengths, self.timeout_s, tenant)
        while True:
            error: HiSparseError = Unreachable(ENDED)
            try:
                async with contextlib.aclosing(self.stream(watching.call())) as stream:
                    async for message in stream:
                        yield message, watching.feed(message)
            except HiSparseError as broken:
                error = broken
            rest = None if self._closed else watching.rest_s(error)
            if rest is None:
                raise error
            await asyncio.sleep(rest)

    async def stream(self, call: Call[Answer, Value]) -> AsyncGenerator[Answer]:
        """As `hisparse_svc.Client.stream`."""
        self._check_open()
        answers = callable_of(self._channel.unary_stream, call)(call.request)
        try:
            async for message in answers:
                yield message
        except grpc.RpcError as failure:
            raise status.to_error(failure, self.target, call.request, None, secure=self._secure) from None
        finally:
            answers.cancel()

    def admit(
        self,
        prompt_tokens: int = 0,
        max_new_tokens: int = 0,
        *,
        wait_s: float = 0.0,
        epoch: int = 0,
        **fields: Unpack[values.RequestFields],
    ) -> PendingLease[HeldLease]:
        """As `hisparse_svc.Client.admit`: await it for the lease, or `async with` it to release the lease too."""
        request = values.Request(prompt_tokens=prompt_tokens, max_new_tokens=max_new_tokens, **fields)
        call = calls.admit(request, wait_s=wait_s, epoch=epoch)

        async def held() -> HeldLease:
            return HeldLease(self, await self._run(call))

        return PendingLease(held())

    async def validate_admit(self, request: values.Request, *, epoch: int = 0) -> values.Admission:
        """As `hisparse_svc.Client.validate_admit`."""
        return await self._run(calls.admit(request, validate_only=True, epoch=epoch))

    async def batch_admit(
        self, requests: Sequence[values.Request], *, partial: bool = False
    ) -> tuple[values.Decision, ...]:
        """As `hisparse_svc.Client.batch_admit`."""
        return await self._run(calls.batch_admit(requests, partial=partial))

    async def commit(self, lease_id: str, epoch: int, *, tenant: str = "", ttl_s: float | None = None) -> values.Lease:
        """As `hisparse_svc.Client.commit`."""
        return await self._run(calls.commit(lease_id, epoch, tenant, ttl_s))

    async def extend(self, lease_id: str, tokens: int, epoch: int, *, tenant: str = "") -> values.Lease:
        """As `hisparse_svc.Client.extend`."""
        return await self._run(calls.extend(lease_id, tokens, epoch, tenant))

    async def renew(self, lease_id: str, epoch: int, *, tenant: str = "", ttl_s: float | None = None) -> values.Lease:
        """As `hisparse_svc.Client.renew`."""
        return await self._run(calls.renew(lease_id, epoch, tenant, ttl_s))

    async def release(self, lease_id: str = "", *, request_id: str = "", tenant: str = "") -> values.Released:
        """As `hisparse_svc.Client.release`."""
        return await self._run(calls.release(lease_id, request_id, tenant))

    async def get_lease(self, lease_id: str, *, tenant: str = "") -> values.Lease:
        """As `hisparse_svc.Client.get_lease`."""
        return await self._run(calls.get_lease(lease_id, tenant))

    async def list_leases(self, tenant: str = "") -> list[values.Lease]:
        """As `hisparse_svc.Client.list_leases`."""
        page = await self._run(calls.list_leases(tenant))
        found = list(page.leases)
        while page.next_page_token:
            page = await self._run(calls.list_leases(tenant, page.next_page_token))
            found += page.leases
        return found

    async def drain(self, *, resume: bool = False, wait_s: float = 0.0) -> values.DrainState:
        """As `hisparse_svc.Client.drain`."""
        return await self._run(calls.drain(resume=resume, wait_s=wait_s))

    async def server_info(self) -> values.ServerInfo:
        """As `hisparse_svc.Client.server_info`."""
        return await self._run(calls.server_info())

    async def plan(self, model: str = "", **fields: Any) -> dict[str, Any]:
        """As `hisparse_svc.Client.plan`."""
        return await self._run(calls.get_budget({"model": model, **fields}))

    async def validate(self, model: str = "", **fields: Any) -> dict[str, Any]:
        """As `hisparse_svc.Client.validate`."""
        return await self._run(calls.validate({"model": model, **fields}))

    async def list_models(self) -> list[dict[str, Any]]:
        """As `hisparse_svc.Client.list_models`."""
        return await self._run(calls.list_models())

    async def send(
        self, call: Call[Answer, Value], *, timeout_s: float | None = None, tries: int = retry.TRIES
    ) -> Answer:
        """As `hisparse_svc.Client.send`."""
        try:
            limit_s = self.timeout_s if timeout_s is None else timeout_s
            return await self._send(call, limit_s + call.wait_s, tries)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():
                raise Unreachable(CLOSED) from None  # grpc cancels what is under way when its channel is closed
            await self._undo(call)
            raise

    async def _undo(self, call: Call[Any, Any]) -> None:
        """Take back what a cancelled call may have got; cancelled again, it goes on in the background."""

        async def step(release: Call[Any, Any]) -> None:
            for rest_s in calls.UNDO_RESTS_S:
                await asyncio.sleep(rest_s)
                if not (await self._send(release, calls.UNDO_S)).already_released:
                    return

        async def undo() -> None:
            with contextlib.suppress(HiSparseError, asyncio.CancelledError):
                await asyncio.gather(*map(step, call.undo))

        if call.undo:
            task = asyncio.create_task(undo())
            self._undoing.add(task)
            task.add_done_callback(self._undoing.discard)
            await asyncio.shield(task)

    async def _send(self, call: Call[Answer, Value], timeout_s: float, most_tries: int = retry.TRIES) -> Answer:
        end = time.monotonic() + timeout_s
        method = callable_of(self._channel.unary_unary, call)
        tries, error = 0, None
        while True:
            self._check_open()
            try:
                left_s = max(end - time.monotonic(), 0.001)
                metadata = (*tracing.metadata(), *self._session)
                answer: Answer = await method(call.request, timeout=left_s, metadata=metadata)
            except grpc.RpcError as failure:
                now = status.to_error(failure, self.target, call.request, timeout_s, secure=self._secure)
                error = unreachable.clearer(error, now)
            else:
                return answer
            tries += 1
            rest = retry.delay_s(error, tries, end - time.monotonic(), most_tries)
            if rest is None:
                raise error from None
            await asyncio.sleep(rest)

    async def _run(self, call: Call[Any, Value]) -> Value:
        return call.read(await self.send(call))

    async def close(self) -> None:
        """Close the connection; leases live on until they are released or end."""
        await asyncio.gather(*self._undoing, return_exceptions=True)
        self._closed = True
        await self._channel.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Unreachable(CLOSED)

    async def __aenter__(self) -> Client:
        """Give the client itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connection."""
        await self.close()


class PendingLease(Coroutine[Any, Any, Held]):
    """A lease asked for: awaited for the lease alone, or entered with `async with` to release it at the end."""

    def __init__(self, coming: Coroutine[Any, Any, Held]) -> None:
        self._coming = coming
        self._held: Held | None = None

    def __await__(self) -> Generator[Any, Any, Held]:
        """Ask, and give the lease."""
        return self._coming.__await__()

    def send(self, value: Any) -> Any:
        """As of every coroutine."""
        return self._coming.send(value)

    def throw(self, *error: Any) -> Any:
        """As of every coroutine."""
        return self._coming.throw(*error)

    def close(self) -> None:
        """As of every coroutine."""
        self._coming.close()

    async def __aenter__(self) -> Held:
        """Ask, and give the lease."""
        self._held = await self._coming
        return self._held

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release; a cancelled block releases too, and where that fails its own error stays the one raised."""
        assert self._held is not None  # noqa: S101 - a block that was not entered is not left
        await self._held.__aexit__(kind, error, trace)


class HeldLease:
    """A lease in hand, as `hisparse_svc.client.HeldLease`."""

    def __init__(self, client: Client, admission: values.Admission) -> None:
        self._client = client
        self.lease = admission.lease
        self.capacity = admission.capacity
        self.repeated_request = admission.repeated_request

    async def commit(self, ttl_s: float | None = None) -> values.Lease:
        """Turn the reservation into use."""
        self.lease = await self._client.commit(self.lease.id, self.lease.epoch, tenant=self.lease.tenant, ttl_s=ttl_s)
        return self.lease

    async def extend(self, tokens: int) -> values.Lease:
        """Grow it to a whole length of `tokens`."""
        self.lease = await self._client.extend(self.lease.id, tokens, self.lease.epoch, tenant=self.lease.tenant)
        return self.lease

    async def renew(self, ttl_s: float | None = None) -> values.Lease:
        """Put off its end."""
        self.lease = await self._client.renew(self.lease.id, self.lease.epoch, tenant=self.lease.tenant, ttl_s=ttl_s)
        return self.lease

    async def release(self) -> values.Released:
        """Give it back."""
        return await self._client.release(self.lease.id, tenant=self.lease.tenant)

    async def __aenter__(self) -> HeldLease:
        """Give the lease itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release; where that fails too, the block's own error stays the one that is raised."""
        try:
            await self.release()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"its lease {self.lease.id} could not be released: {failure}")
