"""Talk to a service: the blocking client.

>>> import hisparse_svc
>>> with hisparse_svc.Node.embedded(host_pool="1GiB") as node:
...     with node.client.admit(prompt_tokens=4096, max_new_tokens=256) as held:
...         held.lease.pages
68

One client is one connection, safe to share between threads. Make it after any fork: gRPC does not survive one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent import futures
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import grpc

from hisparse_svc.errors import HiSparseError
from hisparse_svc.rpc import calls, retry, status, tracing, unreachable, values
from hisparse_svc.rpc.channel import callable_of, dial, of_session
from hisparse_svc.rpc.refusals import CLOSED, Unreachable
from hisparse_svc.rpc.target import resolve
from hisparse_svc.rpc.tls import resolve as resolve_tls
from hisparse_svc.rpc.watching import ENDED, Watching

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence
    from types import TracebackType

    from google.protobuf.message import Message

    from hisparse_svc._proto import capacity_pb2
    from hisparse_svc.rpc.calls import Call
    from hisparse_svc.rpc.tls import Tls

Answer = TypeVar("Answer", bound="Message")
Value = TypeVar("Value")

__all__ = ["Client", "HeldLease"]

BEGUN_S = 1.0
"""Longest that an interrupted call is waited for to have begun, so that it can be cancelled."""


class Client:
    """A connection to one service.

    Args:
        target: `unix:PATH` or `HOST:PORT`; by default `HISPARSE_TARGET`, else the socket that `serve` makes.
        timeout_s: Deadline of every call, retries included; calls that wait get their wait besides.
        tls: Certificates, for a service beyond this machine; by default what `HISPARSE_CA`, `HISPARSE_CERT` and
            `HISPARSE_KEY` name.
        session: Token of an attached writer's session (`HostPool.token`), for an engine that calls from another
            process than the attached one: on the Unix socket its calls then speak for that session.

    Raises:
        InvalidInput: The target, the timeout or a certificate cannot be read. A service that is not there shows at
            the first call.

    Every call raises a `HiSparseError` that says what to do: `InvalidInput`, `Unreachable`, or a kind of `Refused`.
    An `admit` or `batch_admit` that is interrupted (Ctrl-C) releases what its request ids stand for before it raises.
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
        self._channel = dial(grpc, self.target, certificates)

    def get_capacity(self, lengths: Iterable[int] = (), *, tenant: str = "") -> values.Capacity:
        """Give the node as it is now, and how many requests of each length (in tokens) fit, for a tenant."""
        return self._run(calls.get_capacity(lengths, tenant))

    def watch_capacity(self, lengths: Iterable[int] = (), *, tenant: str = "") -> Iterator[values.Capacity]:
        """Give the node now and after every change, at most 20 times a second, until the iterator is closed.

        A watch whose stream breaks goes on by itself from where it was. It gives up, and raises why, when it could not
        for `timeout_s`. After a service that began anew the next value has `resync` set: what was seen before is void.
        What fits is what this tenant would get.
        """
        with contextlib.closing(self.watch_messages(lengths, tenant=tenant)) as messages:
            for _, seen in messages:
                if seen is not None:
                    yield seen

    def watch_messages(
        self, lengths: Iterable[int] = (), *, tenant: str = ""
    ) -> Generator[tuple[capacity_pb2.WatchCapacityResponse, values.Capacity | None]]:
        """Give each message of the service as it came, and the node after it; `None` where it says nothing new."""
        watching = Watching(lengths, self.timeout_s, tenant)
        while True:
            error: HiSparseError = Unreachable(ENDED)
            try:
                for message in self.stream(watching.call()):
                    yield message, watching.feed(message)
            except HiSparseError as broken:
                error = broken
            rest = None if self._closed else watching.rest_s(error)
            if rest is None:
                raise error
            time.sleep(rest)

    def admit(
        self,
        prompt_tokens: int = 0,
        max_new_tokens: int = 0,
        *,
        wait_s: float = 0.0,
        epoch: int = 0,
        **fields: Unpack[values.RequestFields],
    ) -> HeldLease:
        """Reserve everything one request needs, or raise why not. The fields are those of `Request`.

        Args:
            prompt_tokens: Tokens of the prompt.
            max_new_tokens: Most tokens it may produce; the whole length is reserved.
            generated_tokens: Tokens already produced elsewhere.
            pages: Host pages, instead of tokens.
            prefix_hashes: Content hashes of the prompt's full pages; those in host memory are shared.
            request_id: Your name for the request: the same name gives the same lease. By default a random one.
            tenant: Whose quota it counts against.
            priority: From -100 to 100; larger goes first among those that wait.
            ttl_s: Life without commit; the server's default is 30 s.
            wait_s: How long to wait for room before `PoolBusy`.
            epoch: Refuse unless the pool has this epoch; 0 means any.

        Returns:
            The lease, as a context manager that releases it.
        """
        request = values.Request(prompt_tokens=prompt_tokens, max_new_tokens=max_new_tokens, **fields)
        return HeldLease(self, self._run(calls.admit(request, wait_s=wait_s, epoch=epoch)))

    def validate_admit(self, request: values.Request, *, epoch: int = 0) -> values.Admission:
        """Say what `admit` would answer now, and reserve nothing."""
        return self._run(calls.admit(request, validate_only=True, epoch=epoch))

    def batch_admit(self, requests: Sequence[values.Request], *, partial: bool = False) -> tuple[values.Decision, ...]:
        """Reserve for up to 256 requests in one step: for all of them, or for none.

        Args:
            requests: What each needs.
            partial: Decide on each by itself instead: one refusal undoes no other, and is in its `Decision`.

        Raises:
            Refused: The refusal of the first request that does not fit with those before it; its place is in
                `metadata["request"]`. Nothing is reserved.
        """
        return self._run(calls.batch_admit(requests, partial=partial))

    def commit(self, lease_id: str, epoch: int, *, tenant: str = "", ttl_s: float | None = None) -> values.Lease:
        """Turn a reservation into use; it then lives `ttl_s` (10 min by default) from each renewal."""
        return self._run(calls.commit(lease_id, epoch, tenant, ttl_s))

    def extend(self, lease_id: str, tokens: int, epoch: int, *, tenant: str = "") -> values.Lease:
        """Grow a lease to a whole length of `tokens`."""
        return self._run(calls.extend(lease_id, tokens, epoch, tenant))

    def renew(self, lease_id: str, epoch: int, *, tenant: str = "", ttl_s: float | None = None) -> values.Lease:
        """Put off the end of a lease."""
        return self._run(calls.renew(lease_id, epoch, tenant, ttl_s))

    def release(self, lease_id: str = "", *, request_id: str = "", tenant: str = "") -> values.Released:
        """Give a lease back, by its id or by the request's. Releasing twice is no error."""
        return self._run(calls.release(lease_id, request_id, tenant))

    def get_lease(self, lease_id: str, *, tenant: str = "") -> values.Lease:
        """Give one lease with its extents."""
        return self._run(calls.get_lease(lease_id, tenant))

    def list_leases(self, tenant: str = "") -> list[values.Lease]:
        """Give the live leases, in order of their grant, without extents; of one tenant, or of all."""
        page = self._run(calls.list_leases(tenant))
        found = list(page.leases)
        while page.next_page_token:
            page = self._run(calls.list_leases(tenant, page.next_page_token))
            found += page.leases
        return found

    def drain(self, *, resume: bool = False, wait_s: float = 0.0) -> values.DrainState:
        """Stop granting, and answer when nothing is held or `wait_s` is over; with `resume`, grant again."""
        return self._run(calls.drain(resume=resume, wait_s=wait_s))

    def server_info(self) -> values.ServerInfo:
        """Say who answers, and what it allows."""
        return self._run(calls.server_info())

    def plan(self, model: str = "", **fields: Any) -> dict[str, Any]:
        """Plan on the server; without arguments, give the budget of the node as it runs.

        Args:
            model: A preset, or the text of a config.json.
            fields: Those of `GetBudgetRequest`: `kv_dtype`, `gpu`, `host_pool`, `context` (a list), …

        Returns:
            The document of `hisparse-svc plan --json`.
        """
        return self._run(calls.get_budget({"model": model, **fields}))

    def validate(self, model: str = "", **fields: Any) -> dict[str, Any]:
        """Validate on the server; `fields` are those of `ValidateRequest`.

        Returns:
            The document of `hisparse-svc validate --json`.
        """
        return self._run(calls.validate({"model": model, **fields}))

    def list_models(self) -> list[dict[str, Any]]:
        """Give the server's model presets."""
        return self._run(calls.list_models())

    def send(self, call: Call[Answer, Value], *, timeout_s: float | None = None, tries: int = retry.TRIES) -> Answer:
        """Send a call and give its answer as a message.

        Args:
            call: The call.
            timeout_s: Its deadline, where it is not the client's.
            tries: How often it is sent while nothing answers; 1 for who can ask elsewhere.
        """
        try:
            limit_s = self.timeout_s if timeout_s is None else timeout_s
            return self._send(call, limit_s + call.wait_s, tries)
        except Exception:
            raise
        except BaseException:  # interrupted: nobody will hear of a grant
            with contextlib.suppress(Exception):
                for undo in call.undo:
                    for rest_s in calls.UNDO_RESTS_S:
                        time.sleep(rest_s)
                        if not self._send(undo, calls.UNDO_S).already_released:
                            break
            raise

    def _send(self, call: Call[Answer, Value], timeout_s: float, most_tries: int = retry.TRIES) -> Answer:
        end = time.monotonic() + timeout_s
        method = callable_of(self._channel.unary_unary, call)
        tries, error = 0, None
        while True:
            self._check_open()
            try:
                left_s = max(end - time.monotonic(), 0.001)
                metadata = (*tracing.metadata(), *self._session)
                answer: Answer = (_waited if call.wait_s else _called)(method, call.request, left_s, metadata)
            except grpc.RpcError as failure:
                now = status.to_error(failure, self.target, call.request, timeout_s, secure=self._secure)
                error = unreachable.clearer(error, now)
            except ValueError:
                self._check_open()  # another thread has closed it just now, and grpc says so in a word of its own
                raise
            else:
                return answer
            tries += 1
            rest = retry.delay_s(error, tries, end - time.monotonic(), most_tries)
            if rest is None:
                raise error from None
            time.sleep(rest)

    def stream(self, call: Call[Answer, Value]) -> Iterator[Answer]:
        """Send a call whose answers go on until the iterator is closed."""
        self._check_open()
        answers = callable_of(self._channel.unary_stream, call)(call.request)
        try:
            yield from answers
        except grpc.RpcError as failure:
            raise status.to_error(failure, self.target, call.request, None, secure=self._secure) from None
        finally:
            answers.cancel()

    def _run(self, call: Call[Any, Value]) -> Value:
        return call.read(self.send(call))

    def _check_open(self) -> None:
        if self._closed:
            raise Unreachable(CLOSED)

    def close(self) -> None:
        """Close the connection; leases live on until they are released or end."""
        self._closed = True
        self._channel.close()

    def __enter__(self) -> Client:
        """Give the client itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.close()


def _called(method: Any, request: Message, left_s: float, metadata: Any) -> Any:
    return method(request, timeout=left_s, metadata=metadata)


def _waited(method: Any, request: Message, left_s: float, metadata: Any) -> Any:
    """Call what may wait in the service's line: an interruption takes it out of the line, which `_called` would not.

    It is begun in a thread of its own, where no interruption comes: here one could come between the sending of the call
    and our having what cancels it.
    """
    begun: futures.Future[Any] = futures.Future()

    def begin() -> None:
        try:
            begun.set_result(method.future(request, timeout=left_s, metadata=metadata))
        except BaseException as failure:
            begun.set_exception(failure)

    try:
        threading.Thread(target=begin, name="hisparse-admit", daemon=True).start()
        return begun.result().result()
    except BaseException:
        with contextlib.suppress(TimeoutError):  # it was not even started
            if begun.exception(timeout=BEGUN_S) is None:
                begun.result().cancel()
        raise


class HeldLease:
    """A lease in hand. Leaving its `with` block releases it, however the block ends.

    Attributes:
        lease: The lease, as of the last call.
        capacity: The node right after the grant.
        repeated_request: The request id had been granted before; this is that lease.
    """

    def __init__(self, client: Client, admission: values.Admission) -> None:
        self._client = client
        self.lease = admission.lease
        self.capacity = admission.capacity
        self.repeated_request = admission.repeated_request

    def commit(self, ttl_s: float | None = None) -> values.Lease:
        """Turn the reservation into use."""
        self.lease = self._client.commit(self.lease.id, self.lease.epoch, tenant=self.lease.tenant, ttl_s=ttl_s)
        return self.lease

    def extend(self, tokens: int) -> values.Lease:
        """Grow it to a whole length of `tokens`."""
        self.lease = self._client.extend(self.lease.id, tokens, self.lease.epoch, tenant=self.lease.tenant)
        return self.lease

    def renew(self, ttl_s: float | None = None) -> values.Lease:
        """Put off its end."""
        self.lease = self._client.renew(self.lease.id, self.lease.epoch, tenant=self.lease.tenant, ttl_s=ttl_s)
        return self.lease

    def release(self) -> values.Released:
        """Give it back."""
        return self._client.release(self.lease.id, tenant=self.lease.tenant)

    def __enter__(self) -> HeldLease:
        """Give the lease itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release; where that fails too, the block's own error stays the one that is raised."""
        try:
            self.release()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"its lease {self.lease.id} could not be released: {failure}")
