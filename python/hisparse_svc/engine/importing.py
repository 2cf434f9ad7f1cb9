"""Pages of a lease, filled by another process than the one that decodes: disaggregated prefill.

::

    decode engine   admit ──► lease ──────────────────────────────────────────────► commit, decode
    (writer)                    │ id                                       done ──────┘
    prefill process             └─► import_pages ── write, write_keys … ── still held?
    (importer)                        held, writable, room?   renews the lease meanwhile

Rows go straight into the pool's own memory. What keeps them safe is the lease: its pages are nobody else's while it is
held, and stay so until this process says that it has stopped writing. So the service is told at the start, asked for
the lease before every write, which also keeps it alive, and again at the end: a lease that ends while a write runs is
found by the next question.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from hisparse_svc.errors import HiSparseError, InvalidInput, Problem
from hisparse_svc.rpc.refusals import LeaseNotFound
from hisparse_svc.rpc.values import LeaseState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    import numpy as np
    import torch

    from hisparse_svc.client import Client
    from hisparse_svc.kernels import HostRows
    from hisparse_svc.rpc.values import Lease

__all__ = ["FillablePool", "Import", "LeaseNotHeld"]

PAGE_TOKENS = 64
_HELD = (LeaseState.RESERVED, LeaseState.COMMITTED)
_RENEW_WITHIN = timedelta(seconds=15)
"""Half of what a reservation lives: two writes and a renewal fit in the rest."""

_ENDED = "it ended while it was being filled: drop the request, and fill another lease"


class LeaseNotHeld(HiSparseError):
    """The lease's pages are, or may be, somebody else's by now; the text says why and what to do."""

    exit_code: ClassVar[int] = 4


class FillablePool(Protocol):
    """What an import asks of the pool whose pages it fills; `HostPool` is one, and says what each may raise."""

    @property
    def client(self) -> Client:
        """A client to the pool's service."""

    @property
    def epoch(self) -> int:
        """Generation of the pool."""

    def check_attached(self) -> None:
        """Demand that the session has not been closed here."""

    def fill(self, lease_id: str) -> bool:
        """Say that this process is about to write to a lease's pages; false where the lease has ended."""

    def filled(self, lease_id: str) -> None:
        """Say that it writes to them no more."""

    def groups(self) -> list[list[int]]:
        """Layers whose rows lie side by side."""

    def group(self, layer: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Give main KV of a layer's whole group, (pages, rows, layers, row bytes)."""

    def keys_array(self, layer: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Give index keys of one layer."""

    def rows(self, layer: int) -> HostRows:
        """Give the whole group of a layer as the kernels take it."""


class Import:
    """Writes to the pages of one lease. `HostPool.import_pages` makes it; use it as a context manager.

    Each write asks the service whether the lease is held still, a call of a fraction of a millisecond; so write many
    tokens at once. After the block nothing can be written.

    Attributes:
        lease: The lease, as last seen.
        first_token: First token that may be written: pages before it are shared, and full already.
        end_token: End of what the lease's pages hold.
    """

    def __init__(self, pool: FillablePool, lease: Lease) -> None:
        if lease.epoch != pool.epoch:
            rule = f"must be {pool.epoch}: the lease is of another pool, or of this one before a restart"
            raise InvalidInput([Problem("lease.epoch", str(lease.epoch), rule, "admit the request here")])
        self._pool = pool
        self._devices: set[torch.device] = set()
        self._over = False
        self.lease = lease
        self.lease = self._held("nothing was written; admit the request anew")
        if not pool.fill(lease.id):
            raise LeaseNotHeld(f"lease {lease.id} has ended; nothing was written; admit the request anew")
        self._pages = self.lease.page_numbers
        self.first_token = self.lease.shared_pages * PAGE_TOKENS
        self.end_token = len(self._pages) * PAGE_TOKENS

    def write(self, layer: int, rows: Any, *, first_token: int | None = None) -> None:
        """Write rows of main KV of consecutive tokens.

        Args:
            layer: The layer; the first of them where `rows` has several.
            rows: Bytes, `[token, row bytes]`, or `[layer, token, row bytes]` of consecutive layers of one group: a
                torch tensor, on the CPU or a GPU (then `HostPool.register` first), or what numpy reads.
            first_token: Token of the first row; by default the first one that is not shared.

        Raises:
            InvalidInput: With everything wrong about the arguments.
            IndexError: The pool holds no rows of that layer.
            LeaseNotHeld: The lease has ended, or the block is over; nothing was written.
            AttachFailed: The pool is detached.
        """
        start = self.first_token if first_token is None else first_token
        layers = next((group for group in self._pool.groups() if layer in group), [layer])
        into = self._pool.group(layer)
        data = _bytes_of(rows)
        shape = tuple(data.shape) if len(data.shape) == 3 else (1, *data.shape)
        room, row_bytes = len(layers) - layers.index(layer), into.shape[3]
        problems = []
        if len(shape) != 3 or shape[2] != row_bytes or not 1 <= shape[0] <= room:
            rule = f"must be [token, {row_bytes}] or [layer, token, {row_bytes}], of at most {room} layers"
            problems.append(Problem("rows.shape", str(tuple(data.shape)), rule, "pass the layer's rows as bytes"))
        problems += _not_bytes("rows", data)
        problems += self._outside("rows", start, shape[1] if len(shape) == 3 else 0, "first_token")
        if problems:
            raise InvalidInput(problems)
        self._demand_held()
        data = data.reshape(shape)
        if _is_on_device(data):
            self._write_from_device(layer, layers.index(layer), data, start)
            return
        for page, row, at, count in self._runs(start, shape[1]):
            for index in range(shape[0]):
                into[page, row : row + count, layers.index(layer) + index] = data[index, at : at + count]

    def write_keys(self, layer: int, keys: Any, *, first_page: int | None = None) -> None:
        """Write index keys of consecutive pages.

        Args:
            layer: A layer that has an indexer.
            keys: Bytes as the pool stores them, `[page, page bytes]`: each page's values, then its scales; keys that
                have none, one after another.
            first_page: Index, within the lease, of the first of them; by default the first one that is not shared.

        Raises:
            InvalidInput: With everything wrong about the arguments.
            IndexError: The pool holds no keys of that layer.
            LeaseNotHeld: The lease has ended, or the block is over; nothing was written.
            AttachFailed: The pool is detached.
        """
        start = self.first_token // PAGE_TOKENS if first_page is None else first_page
        into = self._pool.keys_array(layer)
        data, page_bytes = _bytes_of(keys), into[0].nbytes
        problems = []
        if len(data.shape) != 2 or data.shape[1] != page_bytes:
            rule = f"must be [page, {page_bytes}]"
            problems.append(Problem("keys.shape", str(tuple(data.shape)), rule, "pass the layer's keys page by page"))
        problems += _not_bytes("keys", data)
        count = data.shape[0] if data.shape else 0
        problems += self._outside("keys", start * PAGE_TOKENS, count * PAGE_TOKENS, "first_page")
        if problems:
            raise InvalidInput(problems)
        self._demand_held()
        whole = data.cpu().numpy() if _is_on_device(data) else data
        for at, page in enumerate(self._pages[start : start + count]):
            into[page] = whole[at].reshape(into.shape[1:])

    def _write_from_device(self, layer: int, index: int, data: torch.Tensor, first_token: int) -> None:
        import torch  # noqa: PLC0415 - only where an engine has it

        from hisparse_svc.kernels import Geometry, backup_pages  # noqa: PLC0415 - needs torch

        first_page = first_token // PAGE_TOKENS
        pages = torch.tensor(self._pages[first_page:], dtype=torch.int32, device=data.device)
        geometry = Geometry(
            seats=1, hot_rows=PAGE_TOKENS, top_k=1
        )  # of a copy without a hot cache: nothing of it is used
        start = first_token - first_page * PAGE_TOKENS
        backup_pages(geometry, self._pool.rows(layer), data, pages, first_token=start, first_layer=index)
        self._devices.add(data.device)

    def _runs(self, first_token: int, tokens: int) -> Iterator[tuple[int, int, int, int]]:
        """Give page, first row, first token of the input, and rows, for each page touched."""
        at = 0
        while at < tokens:
            page, row = divmod(first_token + at, PAGE_TOKENS)
            count = min(PAGE_TOKENS - row, tokens - at)
            yield self._pages[page], row, at, count
            at += count

    def _outside(self, name: str, first: int, tokens: int, field: str) -> list[Problem]:
        if tokens > 0 and self.first_token <= first and first + tokens <= self.end_token:
            return []
        scale = PAGE_TOKENS if field == "first_page" else 1
        unit = "pages" if field == "first_page" else "tokens"
        low, high = self.first_token // scale, self.end_token // scale
        rule = f"must lie within the lease's own {unit} {low} to {high - 1}, at least one of them"
        value = f"{tokens // scale} {unit} from {first // scale}"
        return [Problem(name, value, rule, "extend the lease, or leave out what is shared")]

    def _demand_held(self) -> None:
        """Ask for the lease, and renew it where it ends soon."""
        if self._over:
            raise LeaseNotHeld(f"the import of lease {self.lease.id} is over: call import_pages again to write more")
        self.lease = self._held(_ENDED)
        ends = self.lease.expires_at
        if ends is None or ends - datetime.now(UTC) > _RENEW_WITHIN:
            return
        try:
            self.lease = self._pool.client.renew(self.lease.id, self.lease.epoch, tenant=self.lease.tenant)
        except LeaseNotFound:
            raise LeaseNotHeld(f"lease {self.lease.id} is gone; {_ENDED}") from None

    def _held(self, remedy: str) -> Lease:
        self._pool.check_attached()
        try:
            found = self._pool.client.get_lease(self.lease.id, tenant=self.lease.tenant)
        except LeaseNotFound:
            raise LeaseNotHeld(
                f"this service has no lease {self.lease.id} of tenant {self.lease.tenant!r}; {remedy}"
            ) from None
        if found.state not in _HELD:
            raise LeaseNotHeld(f"lease {found.id} is {found.state}: its pages may be another's; {remedy}")
        return found

    def __enter__(self) -> Import:
        """Give the import itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for copies from a device, and demand that the lease is held still.

        Raises:
            LeaseNotHeld: It ended meanwhile: nobody may read what was written as this request's.
        """
        self._over = True
        for device in self._devices:
            import torch  # noqa: PLC0415 - loaded already

            torch.cuda.synchronize(device)
        try:
            if kind is None:
                self._held(_ENDED)
        finally:
            self._pool.filled(self.lease.id)


def _bytes_of(data: Any) -> Any:
    """A torch tensor on a device as it is; anything else as numpy sees it."""
    import numpy as np  # noqa: PLC0415 - only where an engine has it

    if _is_on_device(data):
        return data
    found: np.ndarray[Any, Any] = np.asarray(data)
    return found


def _is_on_device(data: Any) -> bool:
    return getattr(getattr(data, "device", None), "type", "cpu") == "cuda"


def _not_bytes(name: str, data: Any) -> list[Problem]:
    if str(data.dtype).removeprefix("torch.") == "uint8":
        return []
    return [Problem(f"{name}.dtype", str(data.dtype), "must be uint8", "view the rows as bytes")]
