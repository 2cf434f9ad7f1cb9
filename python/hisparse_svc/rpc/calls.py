"""One function per method of `hisparse.v1`: what is sent, and how the answer is read.

::

    arguments ─► request message ─► Call(path, request, answer type, read) ─► either client sends it

A value that its field cannot hold is refused here, by name, and so are lengths beyond the core's bounds: of a watch
that is refused, a fleet or a publisher would only see that the node is silent. Every other rule is the server's.
"""

from __future__ import annotations

import difflib
import math
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from hisparse_svc import _core
from hisparse_svc._proto import admin_pb2, admission_pb2, budget_pb2, capacity_pb2, engine_pb2, overview_pb2
from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.rpc import convert, status, values
from hisparse_svc.rpc.plain import to_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

Answer = TypeVar("Answer", bound=Message)
Value = TypeVar("Value")
Asked = TypeVar("Asked", bound=Message)

TIMEOUT_S = 10.0
"""A call's deadline where none is given, as in the server's own rule."""

UNDO_RESTS_S = (0.0, 0.02, 0.1)
"""Rests before each try to take something back: the server may come to the undoing before the call that it undoes."""

SHORTEST_S, MOST_S = 0.001, 1e9
"""Bounds of a call's deadline, in seconds."""

UNDO_S = 2.0
"""Deadline for taking back what an interrupted call may have got; whoever interrupts does not want to wait."""

LONGEST_S = 315_576_000_000.0
"""What a protobuf duration holds: ten thousand years."""


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer, Value]):
    """One call, ready to be sent as often as need be."""

    path: str
    request: Message
    answer: type[Answer]
    read: Callable[[Answer], Value]
    wait_s: float = 0.0
    """How long the server may hold it before it decides; the deadline grows by it."""
    undo: tuple[Call[Any, Any], ...] = ()
    """What takes it back where its caller stops waiting, so that a grant nobody hears of is not held until it ends."""


def timeout(seconds: Any, field: str = "timeout_s") -> float:
    """Read a deadline in seconds.

    Raises:
        InvalidInput: It is no number, or out of range.
    """
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if number and SHORTEST_S <= seconds <= MOST_S:
        return float(seconds)
    rule = f"must be a number of seconds from {SHORTEST_S:g} to {MOST_S:,.0f}"
    raise InvalidInput([Problem(field, repr(seconds)[:40], rule, "write 10 or 0.5")])


def lengths_asked(given: Iterable[Any], field: str = "lengths", besides: str = "") -> list[int]:
    """Read the lengths that a call asks about.

    Args:
        given: The lengths.
        field: What they are called in errors; a flag has no places.
        besides: What to say where they are too many and some were not given by the caller.

    Raises:
        InvalidInput: Too many, and each that no node could hold.
    """
    lengths, most = list(given), _core.MAX_LENGTHS_ASKED
    problems = []
    if len(lengths) > most:
        problems.append(
            Problem(field, f"{len(lengths)} lengths", f"must be at most {most}{besides}", "ask about fewer")
        )
    for place, length in enumerate(lengths):
        if isinstance(length, int) and not 1 <= length <= _core.MAX_CONTEXT_TOKENS:
            name = field if field.startswith("-") else f"{field}[{place}]"
            rule, remedy = "must be a possible length", f"give a number from 1 to {_core.MAX_CONTEXT_TOKENS}"
            problems.append(Problem(name, str(length)[:40], rule, remedy))
    if problems:
        raise InvalidInput(problems)
    return lengths  # what is no number, its field refuses


def get_capacity(lengths: Iterable[int], tenant: str = "") -> Call[capacity_pb2.GetCapacityResponse, values.Capacity]:
    """Ask for one snapshot."""
    request = _message(capacity_pb2.GetCapacityRequest, lengths=lengths_asked(lengths), tenant=tenant)
    return _capacity("GetCapacity", request, capacity_pb2.GetCapacityResponse, convert.snapshot)


def watch_capacity(
    lengths: Iterable[int], resume_token: bytes = b"", tenant: str = ""
) -> Call[capacity_pb2.WatchCapacityResponse, capacity_pb2.WatchCapacityResponse]:
    """Ask to be told of changes, from where a token came; the answers go through `convert.Watched`."""
    asked = {"lengths": lengths_asked(lengths), "resume_token": resume_token, "tenant": tenant}
    request = _message(capacity_pb2.WatchCapacityRequest, **asked)
    return _capacity("WatchCapacity", request, capacity_pb2.WatchCapacityResponse, lambda message: message)


def admit(
    request: values.Request, *, wait_s: float = 0.0, validate_only: bool = False, epoch: int = 0
) -> Call[admission_pb2.AdmitResponse, values.Admission]:
    """Reserve everything a request needs. One without an id gets a random one, so that the call may be repeated."""
    message = _admit_message(request, validate_only=validate_only, epoch=epoch, wait=_duration("wait", wait_s or None))
    undo = () if validate_only else (release("", message.request_id, message.tenant),)
    call = _admission("Admit", message, admission_pb2.AdmitResponse, convert.admission, max(wait_s, 0.0))
    return replace(call, undo=undo)


def batch_admit(
    requests: Sequence[values.Request], *, partial: bool = False
) -> Call[admission_pb2.BatchAdmitResponse, tuple[values.Decision, ...]]:
    """Reserve for several requests: for all or none, or, `partial`, for each by itself."""
    asked = [_admit_message(request) for request in requests]
    message = admission_pb2.BatchAdmitRequest(requests=asked, partial=partial)
    undo = tuple(release("", each.request_id, each.tenant) for each in message.requests)
    return replace(_admission("BatchAdmit", message, admission_pb2.BatchAdmitResponse, _decisions), undo=undo)


def commit(
    lease_id: str, epoch: int, tenant: str, ttl_s: float | None
) -> Call[admission_pb2.CommitResponse, values.Lease]:
    """Turn a reservation into use."""
    ttl = _duration("ttl", ttl_s)
    request = _message(admission_pb2.CommitRequest, lease_id=lease_id, epoch=epoch, tenant=tenant, ttl=ttl)
    return _admission("Commit", request, admission_pb2.CommitResponse, convert.lease_of)


def extend(lease_id: str, tokens: int, epoch: int, tenant: str) -> Call[admission_pb2.ExtendResponse, values.Lease]:
    """Grow a lease to a length in tokens."""
    request = _message(admission_pb2.ExtendRequest, lease_id=lease_id, tokens=tokens, epoch=epoch, tenant=tenant)
    return _admission("Extend", request, admission_pb2.ExtendResponse, convert.lease_of)


def renew(
    lease_id: str, epoch: int, tenant: str, ttl_s: float | None
) -> Call[admission_pb2.RenewResponse, values.Lease]:
    """Put off the end of a lease."""
    ttl = _duration("ttl", ttl_s)
    request = _message(admission_pb2.RenewRequest, lease_id=lease_id, epoch=epoch, tenant=tenant, ttl=ttl)
    return _admission("Renew", request, admission_pb2.RenewResponse, convert.lease_of)


def release(lease_id: str, request_id: str, tenant: str) -> Call[admission_pb2.ReleaseResponse, values.Released]:
    """Give everything back."""
    request = _message(admission_pb2.ReleaseRequest, lease_id=lease_id, request_id=request_id, tenant=tenant)
    return _admission("Release", request, admission_pb2.ReleaseResponse, convert.released)


def get_lease(lease_id: str, tenant: str) -> Call[admission_pb2.GetLeaseResponse, values.Lease]:
    """Ask for one lease with its extents."""
    request = _message(admission_pb2.GetLeaseRequest, lease_id=lease_id, tenant=tenant)
    return _admission("GetLease", request, admission_pb2.GetLeaseResponse, convert.lease_of)


def list_leases(
    tenant: str, page_token: str = "", page_size: int = 1_000
) -> Call[admission_pb2.ListLeasesResponse, values.LeasePage]:
    """Ask for one page of the live leases."""
    request = _message(admission_pb2.ListLeasesRequest, tenant=tenant, page_token=page_token, page_size=page_size)
    return _admission("ListLeases", request, admission_pb2.ListLeasesResponse, convert.lease_page)


def drain(*, resume: bool, wait_s: float = 0.0) -> Call[admin_pb2.DrainResponse, values.DrainState]:
    """Stop granting, and wait until nothing is held; or grant again."""
    request = _message(admin_pb2.DrainRequest, resume=resume, wait=_duration("wait", wait_s or None))
    return _admin("Drain", request, admin_pb2.DrainResponse, convert.drain_state, max(wait_s, 0.0))


def server_info() -> Call[admin_pb2.GetServerInfoResponse, values.ServerInfo]:
    """Ask who answers."""
    return _admin(
        "GetServerInfo", admin_pb2.GetServerInfoRequest(), admin_pb2.GetServerInfoResponse, convert.server_info
    )


def overview(lengths: Sequence[int] = ()) -> Call[overview_pb2.GetOverviewResponse, dict[str, Any]]:
    """Ask for the node at a glance; the answer is the document of `hisparse-svc top --json`."""
    request = _message(overview_pb2.GetOverviewRequest, lengths=lengths_asked(lengths))
    return _admin("GetOverview", request, overview_pb2.GetOverviewResponse, to_plain)


def get_budget(fields: dict[str, Any]) -> Call[budget_pb2.GetBudgetResponse, dict[str, Any]]:
    """Plan over the wire; the answer is the document of `hisparse-svc plan --json`."""
    request = _message(budget_pb2.GetBudgetRequest, **_plain_flags(fields))
    return _budget("GetBudget", request, budget_pb2.GetBudgetResponse, to_plain)


def validate(fields: dict[str, Any]) -> Call[budget_pb2.ValidateResponse, dict[str, Any]]:
    """Validate over the wire; the answer is the document of `hisparse-svc validate --json`."""
    request = _message(budget_pb2.ValidateRequest, **_plain_flags(fields))
    return _budget("Validate", request, budget_pb2.ValidateResponse, to_plain)


def list_models() -> Call[budget_pb2.ListModelsResponse, list[dict[str, Any]]]:
    """Ask for the server's model presets."""
    return _budget(
        "ListModels",
        budget_pb2.ListModelsRequest(),
        budget_pb2.ListModelsResponse,
        lambda message: [to_plain(model) for model in message.models],
    )


@dataclass(frozen=True, slots=True)
class _Service:
    name: str

    def __call__(
        self,
        method: str,
        request: Message,
        answer: type[Answer],
        read: Callable[[Answer], Value],
        wait_s: float = 0.0,
    ) -> Call[Answer, Value]:
        return Call(f"/hisparse.v1.{self.name}/{method}", request, answer, read, wait_s)


_capacity = _Service("CapacityService")
_admission = _Service("AdmissionService")
_admin = _Service("AdminService")
_budget = _Service("BudgetService")
_engine = _Service("EngineService")


def publish(
    lease_id: str, epoch: int, first_page: int, hashes: Iterable[bytes]
) -> Call[engine_pb2.PublishResponse, int]:
    """Say that pages of a lease are durable in host memory; gives how many are, from the lease's start."""
    request = _message(
        engine_pb2.PublishRequest,
        lease_id=lease_id,
        epoch=epoch,
        first_page_index=first_page,
        hashes=list(hashes),
    )
    return _engine("Publish", request, engine_pb2.PublishResponse, lambda message: message.durable_pages)


def reclaim(engine_id: str, token: bytes) -> Call[engine_pb2.ReclaimResponse, tuple[values.Reclaimed, ...]]:
    """Take over what the session with this token held."""
    request = _message(engine_pb2.ReclaimRequest, engine_id=engine_id, token=token)
    return _engine("Reclaim", request, engine_pb2.ReclaimResponse, convert.reclaimed)


def report_usage(
    usage: Iterable[values.Usage],
    *,
    swap_in: Iterable[values.SwapInUsage] = (),
    exposed_s: float | None = None,
    steps: int = 0,
) -> Call[engine_pb2.ReportUsageResponse, None]:
    """Say how far running requests have come, and what was swapped in."""
    entries = [
        _message(
            engine_pb2.LeaseUsage,
            lease_id=entry.lease_id,
            tokens=entry.tokens,
            hit_rows=entry.hit_rows,
            miss_rows=entry.miss_rows,
        )
        for entry in usage
    ]
    groups = [
        _message(
            engine_pb2.SwapInUsage,
            layer_group=entry.layer_group,
            hit_rows=entry.hit_rows,
            miss_rows=entry.miss_rows,
            copied_bytes=entry.copied_bytes,
        )
        for entry in swap_in
    ]
    exposed = _duration("exposed_s", exposed_s or None)
    request = _message(engine_pb2.ReportUsageRequest, usage=entries, swap_in=groups, exposed=exposed, steps=steps)
    return _engine("ReportUsage", request, engine_pb2.ReportUsageResponse, lambda _: None)


def _admit_message(request: values.Request, **more: Any) -> admission_pb2.AdmitRequest:
    return _message(
        admission_pb2.AdmitRequest,
        request_id=request.request_id or secrets.token_hex(16),
        prompt_tokens=request.prompt_tokens,
        generated_tokens=request.generated_tokens,
        max_new_tokens=request.max_new_tokens,
        pages=request.pages,
        prefix_hashes=list(request.prefix_hashes),
        tenant=request.tenant,
        priority=request.priority,
        ttl=_duration("ttl", request.ttl_s),
        **more,
    )


SIZES = ("host_pool", "kv_bytes", "weights", "assume_memory")


def _plain_flags(fields: dict[str, Any]) -> dict[str, Any]:
    """Give planner flags as their fields hold them: sizes in bytes, contexts as a list, what is `None` left out."""
    plain = {name: value for name, value in fields.items() if value is not None}
    for name in SIZES:
        if isinstance(plain.get(name), str):
            plain[name] = _core.parse_size(plain[name], name)
    return plain


def _decisions(message: admission_pb2.BatchAdmitResponse) -> tuple[values.Decision, ...]:
    def read(result: admission_pb2.BatchAdmitResult) -> values.Decision:
        if result.WhichOneof("outcome") == "lease":
            return values.Decision(convert.lease(result.lease), None, result.repeated_request)
        return values.Decision(None, status.refusal(result.refusal), result.repeated_request)

    return tuple(map(read, message.results))


def _duration(field: str, seconds: float | None) -> Duration | None:
    if seconds is None:
        return None
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not (number and math.isfinite(seconds) and 0 < seconds <= LONGEST_S):
        rule = f"must be a length of time: seconds above 0, at most {LONGEST_S:,.0f}"
        raise InvalidInput([Problem(field, repr(seconds)[:40], rule, "write 30 or 0.5, or leave it out")])
    nanos = round(seconds * 1_000_000_000)
    return Duration(seconds=nanos // 1_000_000_000, nanos=nanos % 1_000_000_000)


def _message(kind: type[Asked], **fields: Any) -> Asked:
    """Make a message, or name every argument that its field cannot hold."""
    problems = []
    for name, value in fields.items():
        try:
            _refuse_truth(kind, name, value)
            kind(**{name: value})
        except (TypeError, ValueError, OverflowError, AttributeError):
            known = [field.name for field in kind.DESCRIPTOR.fields]
            if name in known:
                shown = repr(value)[:40]
                rule = _rule(kind, name)
                problems.append(Problem(name, shown, f"must be {rule}", "give one"))
            else:
                near = difflib.get_close_matches(name, known, n=1)
                remedy = f"did you mean {near[0]}?" if near else f"use one of {', '.join(known)}"
                problems.append(Problem(name, "given", "is no argument of this call", remedy))
    if problems:
        raise InvalidInput(problems)
    return kind(**fields)


def _refuse_truth(kind: type[Message], name: str, value: Any) -> None:
    """Refuse `True` for a number: protobuf takes it for 1."""
    field = kind.DESCRIPTOR.fields_by_name.get(name)
    if field is not None and field.type != field.TYPE_BOOL:
        entries = value if isinstance(value, (list, tuple)) else (value,)
        if any(isinstance(entry, bool) for entry in entries):
            raise TypeError(name)


RULES = {
    "TYPE_UINT64": "a whole number from 0 to 2^64 - 1",
    "TYPE_UINT32": "a whole number from 0 to 2^32 - 1",
    "TYPE_INT32": "a whole number of 32 bits",
    "TYPE_STRING": "text in valid Unicode",
    "TYPE_BYTES": "bytes",
    "TYPE_BOOL": "true or false",
}


def _rule(kind: type[Message], name: str) -> str:
    field = kind.DESCRIPTOR.fields_by_name[name]
    words = {getattr(type(field), key): text for key, text in RULES.items() if hasattr(type(field), key)}
    text = words.get(field.type, "a value of its type")
    return f"a list, each {text}" if isinstance(field.default_value, list) else text
