"""Arguments of the kernels, checked before anything is launched: a wrong one must not become a sticky CUDA error.

Shapes, dtypes, strides, devices and alignment are checked on every call, on the host. Ids that live in device memory
cannot be read without waiting, so kernels are safe for any id (one that is out of range reads and writes nothing) and
`check_ids` looks at them where a caller can wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kernels.geometry import EMPTY_PAGE, MAX_BATCH, PAGE_ROWS, Geometry
from hisparse_svc.kernels.host_rows import CHUNK_BYTES
from hisparse_svc.kernels.kinds import each
from hisparse_svc.kernels.tensors import PAIR_BYTES, SeatState, StepPlan
from hisparse_svc.kernels.words import word_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from hisparse_svc.kernels.host_rows import HostRows
    from hisparse_svc.kernels.kinds import Given

__all__ = ["Checks", "check_ids", "check_tokens", "step_kinds"]

_KINDS = ("cpu", "cuda")


def step_kinds(geometry: object, state: object, plan: object) -> Given:
    """Give what most calls take and the types of it, for `demand_kinds`."""
    return {**each(Geometry, geometry=geometry), **each(SeatState, state=state), **each(StepPlan, plan=plan)}


class Checks:
    """Collects everything wrong with one call; leaving the block raises it together.

    Example:
        >>> with Checks(torch.device("cpu")) as check:
        ...     check.tensor("words", torch.zeros(3), (3, 64), torch.int32)
        Traceback (most recent call last):
        hisparse_svc.errors.InvalidInput: words.shape is (3,): must be (3, 64); pass the tensor that HotCache made
        words.dtype is torch.float32: must be torch.int32; pass the tensor that HotCache made
    """

    _REMEDY = "pass the tensor that HotCache made"

    def __init__(self, device: torch.device, where: str = "") -> None:
        """Start with nothing wrong.

        Args:
            device: Where all tensors must be.
            where: Why there, as the end of a sentence: ", where the rows are".
        """
        self._device, self._where = device, where
        self._problems: list[Problem] = []
        if device.type not in _KINDS:
            self.refuse("device", device, "must be the CPU or a CUDA device", "move all tensors of the call to one")

    def __enter__(self) -> Checks:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and self._problems:
            raise InvalidInput(self._problems)

    def refuse(self, field: str, value: object, rule: str, remedy: str = _REMEDY) -> None:
        """Note one problem."""
        self._problems.append(Problem(field, str(value), rule, remedy))

    def tensor(
        self,
        name: str,
        tensor: Tensor,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        remedy: str = _REMEDY,
        *,
        align_bytes: int = 1,
    ) -> None:
        """Check a tensor that must lie packed, from a multiple of some bytes on where it is read in larger pieces."""
        if tuple(tensor.shape) != shape:
            self.refuse(f"{name}.shape", tuple(tensor.shape), f"must be {shape}", remedy)
        if tensor.dtype is not dtype:
            self.refuse(f"{name}.dtype", tensor.dtype, f"must be {dtype}", remedy)
        self.packed(name, tensor, align_bytes=align_bytes)

    def packed(self, name: str, tensor: Tensor, *, align_bytes: int = 1) -> None:
        """Check what is not a matter of shape or type: where it is, that it lies packed, and asks for no gradient."""
        if not self.placed(name, tensor):
            return
        if not tensor.is_contiguous():
            self.refuse(f"{name}.stride", tensor.stride(), "must be contiguous", "call contiguous()")
        if tensor.data_ptr() % align_bytes:
            self.refuse(f"{name}.address", tensor.data_ptr(), f"must be a multiple of {align_bytes}", "call clone()")

    def written(
        self,
        name: str,
        tensor: Tensor,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        remedy: str,
        *,
        reads: Mapping[str, Tensor | None],
    ) -> None:
        """Check a tensor that the call writes in pieces of 16 bytes: it must share no memory with what the call reads.

        Args:
            name: Its name.
            tensor: It.
            shape: As `tensor`.
            dtype: As `tensor`.
            remedy: As `tensor`.
            reads: Names and tensors of what is read, or written too.
        """
        self.tensor(name, tensor, shape, dtype, remedy, align_bytes=CHUNK_BYTES)
        if tensor.is_inference() and not torch.is_inference_mode_enabled():
            rule = "must not be written outside inference mode, where it was made"
            self.refuse(name, "an inference tensor", rule, "make it outside, or call under torch.inference_mode()")
        if self._problems:
            return  # what lies elsewhere, or is no tensor of numbers in a row, has no address to compare
        start, end = _span(tensor)
        for other, read in reads.items():
            if read is None or read.data_ptr() >= end:
                continue
            begin, stop = _span(read)
            if start < stop and begin < end:
                self.refuse(name, f"memory of {other}", "must not share memory with it", "give it memory of its own")

    def dims(self, name: str, tensor: Tensor, wanted: str, remedy: str) -> bool:
        """Check that a tensor has as many dimensions as are named; false where the rest is not worth checking."""
        if tensor.dim() == wanted.count(",") + 1:
            return True
        self.refuse(f"{name}.shape", tuple(tensor.shape), f"must be [{wanted}]", remedy)
        return False

    def between(self, name: str, size: int, most: int, remedy: str) -> None:
        """Check a size that may be 1 to `most`; what to do is said of one that is too large."""
        if not 1 <= size <= most:
            empty = "leave the call out: there is nothing to do"
            self.refuse(name, size, f"must be 1 to {most}", remedy if size > most else empty)

    def rows(
        self, name: str, rows: Tensor, shape: tuple[int, ...], remedy: str = "pass rows of this group of layers"
    ) -> None:
        """Check rows of bytes: strided, each row in one piece and aligned."""
        if tuple(rows.shape) != shape:
            self.refuse(f"{name}.shape", tuple(rows.shape), f"must be {shape}", remedy)
            return
        if rows.dtype is not torch.uint8:
            self.refuse(f"{name}.dtype", rows.dtype, "must be torch.uint8", "view the rows as bytes")
            return
        if not self.placed(name, rows):
            return
        if rows.stride(-1) != 1:
            self.refuse(f"{name}.stride", rows.stride(), "must have the bytes of a row side by side", "make it so")
        unaligned = [stride for stride in (*rows.stride()[:-1], rows.data_ptr()) if stride % CHUNK_BYTES]
        if unaligned:
            rule = f"must start every row at a multiple of {CHUNK_BYTES} bytes"
            self.refuse(f"{name}.stride", rows.stride(), rule, "use a row stride of 64 or 128 bytes, or pad the rows")

    def placed(self, name: str, tensor: Tensor) -> bool:
        """Check where a tensor is and that kernels may take it; false where it has no address to look at."""
        if tensor.layout is not torch.strided:
            self.refuse(f"{name}.layout", tensor.layout, "must be torch.strided", "call to_dense()")
            return False
        if tensor.device != self._device:
            self.refuse(f"{name}.device", tensor.device, f"must be {self._device}{self._where}", "move it there")
        if tensor.requires_grad and torch.is_grad_enabled():
            rule = "must be False where gradients are recorded: kernels of decoding give none"
            self.refuse(f"{name}.requires_grad", True, rule, "call under torch.inference_mode(), or detach it")
        return True

    def plan(self, geometry: Geometry, plan: StepPlan) -> None:
        """Check the tensors of a step."""
        batch = plan.batch
        self.between("plan.batch", batch, MAX_BATCH, "split the batch")
        picks = (batch, geometry.query_rows, geometry.top_k)
        self.tensor("plan.seats", plan.seats, (batch,), torch.int32)
        self.tensor("plan.picks", plan.picks, picks, torch.int32)
        self.tensor("plan.rows", plan.rows, picks, torch.int32)
        self.tensor("plan.misses", plan.misses, (batch, geometry.picks, 2), torch.int32, align_bytes=PAIR_BYTES)
        self.tensor("plan.counts", plan.counts, (batch,), torch.int32)

    def state(self, geometry: Geometry, state: SeatState) -> None:
        """Check the seats' state."""
        seats = geometry.seats
        self.tensor("state.lengths", state.lengths, (seats,), torch.int64)
        self.tensor("state.mapped_pages", state.mapped_pages, (seats,), torch.int32)
        self.tensor("state.newest_from", state.newest_from, (seats,), torch.int32)
        self.tensor("state.page_map", state.page_map, (seats, geometry.map_pages), torch.int32)

    def words(self, geometry: Geometry, words: Tensor) -> None:
        """Check the words of one group."""
        self.tensor("words", words, (geometry.seats, geometry.hot_rows), word_dtype(geometry))

    def host(self, host: HostRows, *, written: bool = False) -> None:
        """Check that a CUDA device can reach the host rows, and write them where it is to."""
        if written and host.read_only:
            self.refuse("host", "a reader's rows", "must be writable to be backed up to", "attach as the writer")
        if self._device.type == "cuda" and not _reachable(host):
            remedy = "register it with CUDA (HostPool does), or allocate it pinned"
            self.refuse("host", "pageable memory", "must be page-locked and mapped for the GPU", remedy)

    def layers(self, layers: range, total: int) -> None:
        """Check a choice of layers of a group."""
        if layers.step != 1 or not 0 <= layers.start < layers.stop <= total:
            self.refuse("layers", layers, f"must be consecutive layers of the group's {total}", "name some of them")


def _span(tensor: Tensor) -> tuple[int, int]:
    """Address of the first byte, and the one behind the last."""
    if tensor.is_contiguous():
        return tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()


_registered: dict[tuple[int, int], bool] = {}


def forget_registered() -> None:
    """Ask CUDA anew about all host memory: some of it has just been let go."""
    _registered.clear()


def _reachable(host: HostRows) -> bool:
    """Whether the first and the last byte are registered with CUDA. Asked once per address and size: it takes µs."""
    first = host.view.data_ptr()
    last = first + host.page_pitch * (host.pages - 1) + host.row_pitch
    if not _registered.get((first, last), False):
        _registered[first, last] = host.view.is_pinned() and host.view[-1, -1].is_pinned()
    return _registered[first, last]


def check_tokens(check: Checks, first_token: int, tokens: int, pages: Tensor) -> None:
    """Check that consecutive tokens of one request lie in its pages."""
    room = pages.numel() * PAGE_ROWS
    if tokens < 1:
        check.refuse("tokens", tokens, "must be at least 1", "leave the call out: there is nothing to do")
    elif first_token < 0 or first_token + tokens > room:
        rule = f"must lie within the {room} tokens that the pages given hold"
        value = f"{first_token} to {first_token + tokens - 1}"
        check.refuse("tokens", value, rule, "give the pages of all of them")


def check_ids(geometry: Geometry, state: SeatState, plan: StepPlan, host_pages: int | None = None) -> None:
    """Check ids in device memory; waits for the device.

    Args:
        geometry: Shape of the hot cache.
        state: Seats of it.
        plan: Seats and picks about to be resolved.
        host_pages: Pages of the host pool, where its map is to be checked.

    Raises:
        InvalidInput: With every kind of id that is out of range.
    """
    with Checks(plan.seats.device) as check:
        seats = plan.seats.tolist()
        used = [seat for seat in seats if seat >= 0]
        if bad := [seat for seat in used if seat >= geometry.seats]:
            check.refuse("plan.seats", bad[0], f"must be below {geometry.seats}, or -1", "use a seat of this cache")
            return
        if len(set(used)) != len(used):
            check.refuse("plan.seats", seats, "must name each seat once", "give each request a seat of its own")
        lengths = state.lengths.tolist()
        if bad := [lengths[seat] for seat in used if not 0 <= lengths[seat] <= geometry.context_tokens]:
            rule = f"must be 0 to {geometry.context_tokens}"
            check.refuse("state.lengths", bad[0], rule, "set the tokens of the request")
        for request, seat in enumerate(seats):
            picks = plan.picks[request]
            highest, lowest = int(picks.max()), int(picks.min())
            if seat >= 0 and (highest >= lengths[seat] or lowest < -1):
                value = highest if highest >= lengths[seat] else lowest
                check.refuse("plan.picks", value, f"must be a token below {lengths[seat]}, or -1", "mask it with -1")
                break
        if host_pages is not None:
            pages = state.page_map[state.page_map != EMPTY_PAGE]
            if pages.numel() and (int(pages.max()) >= host_pages or int(pages.min()) < 0):
                value = int(pages.max()) if int(pages.max()) >= host_pages else int(pages.min())
                rule = f"must be a page below {host_pages}"
                check.refuse("state.page_map", value, rule, "map the pages of the lease")
