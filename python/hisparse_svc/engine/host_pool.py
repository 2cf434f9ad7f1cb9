"""A host pool in an engine's process: layers as arrays over the service's own memory, without a copy.

::

    service ── segments ──┬── writer rank:  arrays that may be written
      (attach socket)     └── other ranks:  the same bytes, read-only by the kernel

A service that is killed ends nothing: the pool stays mapped, and the session goes on with the next service, in a new
epoch. The session ends with `close`, with the block, or with the process, however that dies. From then
on the engine's leases wait for a successor that knows the token, and are freed when none comes.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hisparse_svc import _core
from hisparse_svc.client import Client
from hisparse_svc.engine.importing import Import
from hisparse_svc.engine.registration import Cuda, NotRegistered, Registration
from hisparse_svc.errors import HiSparseError, InvalidInput, Problem
from hisparse_svc.node import Node
from hisparse_svc.rpc import calls, unreachable
from hisparse_svc.rpc.target import Target, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    import numpy as np
    import torch

    from hisparse_svc.engine.registration import Registrar
    from hisparse_svc.kernels import HostRows
    from hisparse_svc.rpc.values import Lease, Reclaimed, SwapInUsage, Usage

__all__ = ["AttachFailed", "AttachRefused", "HostPool"]

ROLES = ("writer", "reader", "writable_reader", "importer")


class AttachFailed(HiSparseError):
    """The service shares no pool with this process; the text says why and what to do."""

    exit_code: ClassVar[int] = 3


class AttachRefused(AttachFailed):
    """The service is there and says no; the text says why and what to do."""

    exit_code: ClassVar[int] = 4


class HostPool:
    """An attached pool.

    Use it as a context manager. Arrays, tensors and buffers made from it stay mapped after `close`, and are not to be
    touched any more then: their pages may be another's.

    Example:
        >>> from hisparse_svc.engine import HostPool
        >>> with HostPool.embedded(host_pool="256MiB") as pool:
        ...     pool.write_row(0, page=3, row=63, data=bytes([7]) * 656)
        ...     memoryview(pool.layer(0))[3, 63, 0]
        7
    """

    def __init__(self, attached: _core.AttachedPool, target: Target, engine_id: str) -> None:
        self.engine_id = engine_id
        self.node: Node | None = None
        self._attached = attached
        self._target = target
        self._client: Client | None = None
        self._registration: Registration | None = None
        self._closed = False

    @classmethod
    def attach(
        cls,
        target: str | None = None,
        *,
        engine_id: str = "engine",
        role: Literal["writer", "reader", "writable_reader", "importer"] = "writer",
        rank: int = 0,
    ) -> HostPool:
        """Map the pool of the service at `target` (`unix:PATH`; by default the one that clients dial).

        Args:
            target: The service's gRPC socket, on this machine.
            engine_id: Name of the engine; all its ranks give the same, and so does its successor.
            role: `writer` for the rank whose GPU backs rows up, one at a time; `reader` for the others, which the
                kernel keeps from writing; `writable_reader` for those whose GPU cannot register read-only memory
                (`hisparse-svc doctor` says so); `importer` for a prefill process beside it (`import_pages`).
            rank: Rank within the engine.

        Raises:
            InvalidInput: The target is no Unix socket, or an argument is out of range.
            AttachFailed: Nobody listens there; `AttachRefused` where the service says no.
        """
        found = resolve(target)
        problems = []
        if found.socket is None:
            rule = "must be the service's Unix socket: memory is shared within a machine"
            problems.append(Problem("target", f'"{found}"', rule, "write unix:PATH"))
        if role not in ROLES:
            problems.append(Problem("role", f'"{role}"', f"must be one of {', '.join(ROLES)}", "choose one of them"))
        if not isinstance(engine_id, str) or not 1 <= len(engine_id.encode()) <= 256:
            rule, remedy = "must be text of 1 to 256 bytes", "give the name that all ranks of the engine have"
            problems.append(Problem("engine_id", repr(engine_id)[:40], rule, remedy))
        if type(rank) is not int or not 0 <= rank < 1 << 32:
            problems.append(Problem("rank", repr(rank), "must be a rank of the engine", "count from 0"))
        if problems or found.socket is None:
            raise InvalidInput(problems)
        try:
            attached = _core.AttachedPool.attach(found.socket, engine_id, rank=rank, role=role)
        except PermissionError as failure:
            raise AttachRefused(str(failure)) from None
        except ConnectionError as failure:
            refused = unreachable.not_for_this_user(found.socket)
            raise AttachFailed(f"{refused}, and `serve --allow-uid` name it" if refused else str(failure)) from None
        return cls(attached, found, engine_id)

    @classmethod
    def embedded(cls, *, engine_id: str = "engine", **settings: Any) -> HostPool:
        """Start a node in this process that owns a pool, and attach as its writer; both end with the block.

        Args:
            engine_id: Name of the engine.
            settings: Those of `Node.embedded`.

        Raises:
            InvalidInput: Everything wrong with the settings, or a pool that does not fit here.
        """
        node = Node.embedded(**{**settings, "backing": "memory"})
        try:
            pool = cls.attach(node.target, engine_id=engine_id)
        except BaseException:
            node.stop(0.0)
            raise
        pool.node = node
        return pool

    @property
    def client(self) -> Client:
        """A client to the same service. What it commits lives as long as this session, where this is the writer."""
        if self._client is None:
            session = self.token if self.writable else None
            self._client = Client(str(self._target), session=session)
        return self._client

    @property
    def epoch(self) -> int:
        """Generation of the pool; leases of another one name other pages."""
        return self._attached.epoch

    @property
    def token(self) -> bytes:
        """The secret by which a successor takes this engine's leases back: for the engine's supervisor to keep."""
        return self._attached.token

    @property
    def standing(self) -> str:
        """Where the session stands: `open`, `reconnecting` while the service is gone, or `ended`."""
        return self._attached.standing

    def next_notice(self, timeout_s: float = 0.0) -> tuple[str, str] | None:
        """Wait for the next thing that the engine must know, as (kind, what it is about).

        `quarantined` and `released` name a lease that is no longer this engine's: it stops writing to its pages.
        `resumed` names the epoch that leases carry after the service was restarted. `ended` says why the session is
        over: nothing may be written any more.

        Args:
            timeout_s: How long to wait.

        Raises:
            ValueError: A time that is none.
        """
        return self._attached.next_notice(timeout_s)

    @property
    def writable(self) -> bool:
        """Whether this rank may write."""
        return self._attached.writable

    @property
    def pages(self) -> int:
        """Pages, the last one included, which takes what must go nowhere and is never granted."""
        return self._attached.pages

    def layers(self) -> list[int]:
        """Numbers of the layers whose main KV the pool holds."""
        return self._attached.layers(indexer=False)

    def indexed_layers(self) -> list[int]:
        """Numbers of the layers whose index keys the pool holds."""
        return self._attached.layers(indexer=True)

    def layer(self, layer: int) -> _core.Layer:
        """Give main KV of one layer as a buffer of bytes, (pages, rows, row bytes), for `memoryview` and DLPack.

        Layers that share an index lie side by side, so rows of one layer may lie apart: see `strides`. A reader's is
        marked read-only, which `torch.from_dlpack` does not heed: a write through such a tensor ends the process.

        Raises:
            IndexError: The pool holds no such layer.
        """
        self.check_attached()
        _count_from_0(layer=layer)
        return self._attached.layer(layer, indexer=False)

    def keys(self, layer: int) -> _core.Layer:
        """Give index keys of one layer as a buffer.

        Keys with scales are (pages, page bytes): a page holds the values of all its keys, then their scales. Keys
        without (bfloat16, float32) are (pages, keys of a page, key bytes).

        Raises:
            IndexError: The pool holds none of it.
        """
        self.check_attached()
        _count_from_0(layer=layer)
        return self._attached.layer(layer, indexer=True)

    def array(self, layer: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Give main KV of one layer as a numpy array over the pool's own bytes; not writable for a reader.

        Raises:
            IndexError: The pool holds no such layer.
        """
        import numpy as np  # noqa: PLC0415 - only where an engine has it

        return np.asarray(self.layer(layer))

    def tensor(self, layer: int) -> torch.Tensor:
        """Give main KV of one layer as a torch tensor over the pool's own bytes, on the CPU, for the writer.

        Raises:
            IndexError: The pool holds no such layer.
            AttachFailed: This rank is a reader: torch has no read-only tensors, and a write would kill the process.
        """
        if not self.writable:
            raise AttachFailed("torch cannot mark a tensor read-only, and this rank is a reader: use array()")
        import torch  # noqa: PLC0415 - only where an engine has it

        with torch.inference_mode(mode=False):  # as in `rows`
            return torch.from_numpy(self.array(layer))

    def group(self, layer: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Give main KV of a layer's whole group as a numpy array, (pages, rows, layers, row bytes).

        Raises:
            IndexError: The pool holds no rows of it.
            AttachFailed: The pool is detached.
        """
        self.check_attached()
        _count_from_0(layer=layer)
        import numpy as np  # noqa: PLC0415 - only where an engine has it

        return np.asarray(self._attached.group(layer))

    def keys_array(self, layer: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Give index keys of one layer as a numpy array, in the shape of `keys`.

        Raises:
            IndexError: The pool holds none of it.
            AttachFailed: The pool is detached.
        """
        import numpy as np  # noqa: PLC0415 - as above

        return np.asarray(self.keys(layer))

    def import_pages(self, lease: Lease) -> Import:
        """Fill pages of a lease from this process, beside the one that will decode: disaggregated prefill.

        Example:
            >>> with HostPool.attach("unix:/run/hisparse/hisparse.sock", role="importer") as pool:  # doctest: +SKIP
            ...     with pool.import_pages(pool.client.get_lease(lease_id)) as pages:
            ...         pages.write(0, rows)  # [token, row bytes]

        Args:
            lease: A reserved or committed one, of this service; in another process, what `Client.get_lease` gives.

        Raises:
            InvalidInput: A lease of another pool, or of this one before a restart.
            LeaseNotHeld: It has ended, or this service never granted it.
            AttachFailed: This rank is a reader, or the pool is detached.
        """
        self.check_attached()
        if not self.writable:
            raise AttachFailed("this rank is a reader: attach as importer to fill pages")
        return Import(self, lease)

    @property
    def attached(self) -> bool:
        """Whether the session has not been closed here."""
        return not self._closed

    def fill(self, lease_id: str, *, timeout_s: float = 5.0) -> bool:
        """Say that this process is about to write to a lease's pages; `import_pages` does so.

        Until `filled`, or the end of the session, a release gives the pages to nobody else, for at most the
        quarantine bound of 120 s; the notice `quarantined` says that writing must stop.

        Returns:
            Whether the lease lives; where it does not, nothing may be written.

        Raises:
            AttachFailed: The pool is detached, or the service does not answer in time: nothing may be written.
        """
        self.check_attached()
        try:
            return self._attached.fill(lease_id, timeout_s)
        except ConnectionError as error:
            raise AttachFailed(str(error)) from None

    def filled(self, lease_id: str) -> None:
        """Say that this process writes to that lease's pages no more."""
        self._attached.filled(lease_id)

    def check_attached(self) -> None:
        """Demand that the session has not been closed here.

        Raises:
            AttachFailed: It has.
        """
        if self._closed:
            raise AttachFailed("this pool is detached: its pages may be another's by now; attach again")

    def publish(self, lease: Lease, hashes: Sequence[bytes], *, first_page: int = 0) -> int:
        """Say that full pages of a lease are durable here, main KV and index keys both: their prefix may be shared.

        Args:
            lease: One that this engine has committed.
            hashes: One keyed, chained content hash of 32 bytes per page, in order.
            first_page: Index of the first of them within the lease.

        Returns:
            How many of the lease's pages are durable now, from its start: where a successor resumes.

        Raises:
            HiSparseError: The service refuses, or cannot be reached.
        """
        call = calls.publish(lease.id, lease.epoch, first_page, hashes)
        return call.read(self.client.send(call))

    def reclaim(self, token: bytes) -> tuple[Reclaimed, ...]:
        """Take over what an ended session of this engine held; `token` is that session's.

        Returns:
            Every lease that this session holds now, each with the length that is durable here.

        Raises:
            InvalidInput: It is no token.
            NotThisEngine: No session of this engine with this token has ended here, or its leases are past their time.
        """
        if len(token) != len(self.token):
            rule = f"must be the {len(self.token)} bytes of a session's token"
            problem = Problem("token", f"{len(token)} bytes", rule, "give `HostPool.token` of the session that ended")
            raise InvalidInput([problem])
        call = calls.reclaim(self.engine_id, token)
        return call.read(self.client.send(call))

    def report_usage(
        self,
        usage: Iterable[Usage] = (),
        *,
        swap_in: Iterable[SwapInUsage] = (),
        exposed_s: float | None = None,
        steps: int = 0,
    ) -> None:
        """Say how far running requests have come and what was swapped in; it shows in the service's metrics.

        Args:
            usage: Requests, at most 4,096 at once.
            swap_in: Layer groups. Where they are given, the rows of `usage` are not counted a second time.
            exposed_s: Time that decode steps stood still for rows on their way, in seconds.
            steps: How many steps that is of.

        Raises:
            HiSparseError: The service refuses, or cannot be reached.
        """
        self.client.send(calls.report_usage(usage, swap_in=swap_in, exposed_s=exposed_s, steps=steps))

    def register(self, registrar: Registrar | None = None, *, device: int = 0) -> None:
        """Page-lock the pool for CUDA: all of it, or nothing. Twice is no error; `close` undoes it.

        Args:
            registrar: Who does it; by default the CUDA driver.
            device: Number of the GPU.

        Raises:
            DeviceUnavailable: There is no CUDA device; a session on the CPU needs no registration.
            NotRegistered: torch or cuda-core is not installed, or the driver refuses; nothing stays locked.
        """
        self.check_attached()
        if self._registration is None:
            registrar = registrar or Cuda(device)
            try:
                self._attached.fault_in()  # page-locking would do it too, with one thread
            except OSError as failure:
                raise NotRegistered(f"cannot map all of the pool: {failure}") from None
            self._registration = Registration(
                self._attached.chunks, registrar, read_only=self._attached.mapped_read_only
            )

    def groups(self) -> list[list[int]]:
        """Layers whose rows lie side by side: one that has an indexer, and those that reuse its top-k."""
        return self._attached.groups()

    def rows(self, layer: int) -> HostRows:
        """Give the whole group of a layer as the swap-in takes it; `register` first where there is a GPU.

        A reader's are for the swap-in alone, which only reads: torch cannot mark the tensor, and a write through it
        ends the process.

        Raises:
            IndexError: The pool holds no rows of it.
            AttachFailed: The pool is detached.
        """
        self.check_attached()
        import torch  # noqa: PLC0415 - only where an engine has it

        from hisparse_svc.kernels import HostRows  # noqa: PLC0415 - needs torch

        with torch.inference_mode(mode=False):  # which made them could alone write them
            if not self.writable:
                from_dlpack: Any = torch.utils.dlpack.from_dlpack  # untyped in torch
                return HostRows(from_dlpack(self._attached.group(layer)), read_only=True)
            return HostRows(torch.from_numpy(self.group(layer)))

    def read_row(self, layer: int, *, page: int, row: int) -> bytes:
        """Copy one row of main KV out.

        Raises:
            IndexError: There is no such row.
            AttachFailed: The pool is detached.
        """
        self.check_attached()
        _count_from_0(layer=layer, page=page, row=row)
        return self._attached.read_row(layer, page, row)

    def write_row(self, layer: int, *, page: int, row: int, data: bytes) -> None:
        """Copy one row of main KV in.

        Raises:
            IndexError: There is no such row.
            AttachFailed: The pool is detached.
            ValueError: `data` is not as long as a row.
            PermissionError: This rank is a reader.
        """
        self.check_attached()
        _count_from_0(layer=layer, page=page, row=row)
        self._attached.write_row(layer, page, row, data)

    def close(self) -> None:
        """End the session, and the node that was started for it."""
        self._closed = True
        registration, self._registration = self._registration, None
        if registration is not None:
            registration.close()
            checks = sys.modules.get("hisparse_svc.kernels.checks")
            if checks is not None:  # it remembers what the GPU could reach
                checks.forget_registered()
        if self._client is not None:
            self._client.close()
            self._client = None
        self._attached.close()
        if self.node is not None:
            self.node.stop(0.0)
            self.node = None

    def __enter__(self) -> HostPool:
        """Give the pool itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()


def _count_from_0(**indices: int) -> None:
    """Refuse what is before the first as what is behind the last: the core holds no negative number."""
    for name, index in indices.items():
        if index < 0:
            raise IndexError(f"{name} {index} is before the first: count from 0")
