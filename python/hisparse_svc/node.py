"""A node in this process: the service on threads of its own, and a client to it.

>>> import hisparse_svc
>>> with hisparse_svc.Node.embedded(host_pool="1GiB") as node:
...     node.client.get_capacity().max_request_tokens
19840
"""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisparse_svc import _core, config
from hisparse_svc.errors import Gathered, InvalidInput, Problem
from hisparse_svc.planner.models import model_or_problems
from hisparse_svc.rpc.target import default_socket
from hisparse_svc.scratch import Scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from hisparse_svc._core import Plan, Service
    from hisparse_svc.client import Client
    from hisparse_svc.config import ServeConfig

__all__ = ["Node"]

LOOK_S = 0.1
"""Between two looks at how far the pool is."""

STOP_GRACE_S = 5.0
"""How long calls may finish after a stop."""


class Node:
    """A running service, and what it was planned from.

    It belongs to the process that started it. In a forked child it counts as stopped, and stopping it does nothing.

    Attributes:
        config: The settings it runs with.
        plan: The plan behind its pools.
    """

    def __init__(self, config: ServeConfig, plan: Plan, service: Service, scratch: Scratch | None = None) -> None:
        self._owner = os.getpid()
        self.config = config
        self.plan = plan
        self._service = service
        self._scratch = scratch
        self._client: Client | None = None

    @classmethod
    def embedded(cls, **settings: Any) -> Node:
        """Start a service in this process, on a private socket unless one is named, and stop it with the block.

        Args:
            settings: Those of `hisparse-svc serve`: `model`, `host_pool`, `kv_bytes`, `socket`, … Environment and
                files are not read. `http` is off by default.

        Raises:
            InvalidInput: Everything wrong with them.
        """
        scratch = None
        if settings.get("socket") is None:
            scratch = Scratch()
            settings["socket"] = scratch.folder / "node.sock"
        settings.setdefault("http", "off")
        try:
            chosen, problems, unread = config.read(settings, environment={})
            if problems:
                check(chosen, problems, unread)
            return cls.start(chosen, scratch=scratch)
        except BaseException:
            if scratch is not None:
                scratch.cleanup()
            raise

    @classmethod
    def start(
        cls,
        settings: ServeConfig,
        *,
        handle_signals: bool = False,
        scratch: Scratch | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Node:
        """Start a service as `serve` does, and wait until its pool is made.

        Probes and clients are answered meanwhile; nothing is granted.

        Args:
            settings: What it runs with.
            handle_signals: Stop on SIGTERM and SIGINT; for a process that does nothing else.
            scratch: A folder to remove at the end.
            progress: Told several times a second how many bytes of the pool are made, and of how many.

        Raises:
            InvalidInput: Everything wrong with the settings, the first address that cannot be had, or a pool that
                cannot.
        """
        plan = check(settings)
        model, arguments = model_or_problems(settings.model), _plan_arguments(settings)
        memory = None
        if settings.backing == "memory":
            memory = _core.PoolLayout.of_plan(arguments, model, plan, groups=settings.layer_groups == "auto")
        try:
            service = _core.Service.start(
                plan,
                memory=memory,
                pages=settings.pages,
                numa=settings.numa,
                allow_uids=settings.allow_uid or (),
                tenants=[(part.tenant, part.pool, part.floor, part.ceiling) for part in settings.tenants],
                mlock=settings.mlock,
                assume_memory_bytes=settings.assume_memory_bytes,
                seats=settings.seats,
                max_requests=settings.max_requests,
                socket=settings.socket,
                listen=settings.listen,
                http=settings.http,
                access=settings.access,
                tls=_tls(settings),
                limits=_limits(settings),
                log=settings.log if handle_signals else "off",
                exemplars=settings.exemplars,
                handle_signals=handle_signals,
                state_dir=settings.state_dir,
                reclaim_window_s=float(settings.reclaim_window_s),
            )
        except InvalidInput as failure:
            raise _as_flags(failure, settings, plan) from None
        node = cls(settings, plan, service, scratch)
        try:
            node._make_pool(progress)
        except BaseException:
            node.stop(0.0)
            raise
        return node

    def _make_pool(self, progress: Callable[[int, int], None] | None) -> None:
        try:
            while not self._service.made(LOOK_S):
                if progress is not None and (seen := self._service.progress) is not None:
                    progress(*seen)
        except InvalidInput as failure:
            if not self._service.stopping:  # told to stop meanwhile: that is no failure
                raise _as_flags(failure, self.config, self.plan) from None

    @property
    def addresses(self) -> list[str]:
        """Where it listens, with the ports it got; a socket by its whole path, for who runs elsewhere."""
        scheme, absolute = "unix:", Path.cwd()
        return [
            f"{scheme}{absolute / address.removeprefix(scheme)}" if address.startswith(scheme) else address
            for address in self._service.addresses
        ]

    @property
    def warnings(self) -> list[str]:
        """What was amiss at the start and is mended, and what the pool is not that it was to be; for the operator."""
        made = self._service.pool
        return [*_pool_not_used(self.config, self.plan), *self._service.warnings, *(made["notes"] if made else [])]

    @property
    def target(self) -> str:
        """What `Client` takes to reach it."""
        return f"unix:{self.config.socket}"

    @property
    def client(self) -> Client:
        """A client to it, made at the first use and closed with the node."""
        if self._client is None:
            from hisparse_svc.client import Client  # noqa: PLC0415 - a node may be driven from outside alone

            self._client = Client(self.target)
        return self._client

    @property
    def seats(self) -> int:
        """Requests that run at once."""
        return self.plan.seats if self.config.seats is None else self.config.seats

    def description(self) -> dict[str, Any]:
        """Give what `serve` says when it is ready, as plain data."""
        return {
            "model": self.plan.model.name,
            "backing": self.config.backing,
            "addresses": self.addresses,
            "host_pages": self.plan.logical_tokens // self.plan.page_tokens,
            "seats": self.seats,
            "max_request_tokens": self.plan.max_request_tokens,
        }

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._service.stopping

    def wait(self, longest_s: float | None = None) -> bool:
        """Wait for its end, and say whether it has ended."""
        return self._service.wait(longest_s)

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Stop: nothing new is granted, calls may finish for a while, and the socket goes."""
        if os.getpid() != self._owner:
            return
        if self._client is not None:
            self._client.close()
            self._client = None
        self._service.stop(grace_s)
        self._service.wait(grace_s + 5.0)
        if self._scratch is not None:
            self._scratch.cleanup()

    def __enter__(self) -> Node:
        """Give the node itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self.stop()


def _tls(settings: ServeConfig) -> tuple[Path, Path, Path] | None:
    files = {"--tls-cert": settings.tls_cert, "--tls-key": settings.tls_key, "--tls-client-ca": settings.tls_client_ca}
    given = [path for path in files.values() if path is not None]
    if not given:
        return None
    missing = [flag for flag, path in files.items() if path is None]
    if missing:
        rule = "TLS needs a certificate, its key and the authorities of clients"
        raise InvalidInput([Problem(flag, "missing", rule, "give all three") for flag in missing])
    return given[0], given[1], given[2]


LIMITS = ("max_connections", "max_connections_per_user", "max_calls_per_peer", "max_calls", "admits_per_second")


def _limits(settings: ServeConfig) -> dict[str, int]:
    chosen = {name: getattr(settings, name) for name in LIMITS}
    return {name: value for name, value in chosen.items() if value is not None}


PLANNED_BY = frozenset(
    {"model", "kv_dtype", "host_pool", "ratio", "hot_rows", "gpu", "kv_bytes", "tp", "context", "assume_memory"}
)
"""Settings that the plan is made from."""


def check(settings: ServeConfig, problems: Iterable[Problem] = (), unread: Collection[str] = ()) -> Plan:
    """Plan for the settings, and find all that is wrong with them and can be known before anything is made.

    Args:
        settings: What to run with.
        problems: What was found already.
        unread: Names of settings that could not be read: nothing is said of what depends on them.

    Raises:
        InvalidInput: Everything, the problems given included.
    """
    found = Gathered(problems)
    found.read(_check_backing, settings)
    found.read(_tls, settings)
    if settings.socket == default_socket():
        found.read(_check_owner, settings.socket.parent)
    plan = None
    if not PLANNED_BY & set(unread):
        plan = found.read(_planned, settings)
    if plan is not None and settings.context is not None:
        found.read(_check_context, settings.context, plan)
    if plan is not None and settings.seats is not None and settings.seats > plan.seats:
        rule = f"is more than fits: this model, GPU memory and host pool make {plan.seats}"
        remedy = f"give at most {plan.seats}, or leave it out"
        found.problems.append(Problem("--seats", str(settings.seats), rule, remedy))
    found.end()
    assert plan is not None  # noqa: S101 - nothing was found, so it was made
    return plan


def _planned(settings: ServeConfig) -> Plan:
    model = model_or_problems(settings.model)
    of_model = {field for field, *_ in model if field != "MODEL"} if isinstance(model, list) else set()
    try:
        return _core.plan(_plan_arguments(settings), model)
    except InvalidInput as failure:
        raise _as_flags(failure, settings, of_model=of_model) from None


def _check_context(context: int, plan: Plan) -> None:
    """Refuse a length to size for of which not one request runs."""
    row = plan.concurrency[0]
    if row.hisparse > 0:
        return
    rule = f"is longer than any request that runs here: {plan.max_req_len} tokens"
    remedy = f"give at most {plan.max_req_len}"
    remedy += ", which is the model's own" if row.binding == "context" else ", or more --host-pool and --kv-bytes"
    raise InvalidInput([Problem("--context", str(context), rule, remedy)])


def _pool_not_used(settings: ServeConfig, plan: Plan) -> list[str]:
    """Say that the host pool is smaller than was asked for, where whole pages of it cannot be used."""
    wanted, page_bytes = settings.host_pool_bytes, plan.host_bytes // (plan.logical_tokens // plan.page_tokens)
    if not isinstance(wanted, int) or wanted - plan.host_bytes < page_bytes:
        return []
    used = _core.show_size(plan.host_bytes)
    why = f"{' and '.join(plan.binding)} of this model and GPU memory allow no more"
    return [
        f"--host-pool is {_shown_size(wanted)}, and {used} of it are used: {why}; ask for {used}, or plan with more "
        "--kv-bytes: `hisparse-svc plan` says what it brings"
    ]


def _shown_size(size_bytes: int) -> str:
    """Give a size as its user wrote it, where that was a round one, else in bytes."""
    shown = _core.show_size(size_bytes)
    whole = "." not in shown and _core.parse_size(shown.replace(" ", ""), "--host-pool") == size_bytes
    return shown if whole else f"{size_bytes} bytes"


def _of_host_pool(problem: Problem, settings: ServeConfig, plan: Plan | None) -> Problem:
    """Name the host pool's size as it was asked for: what is refused may be a part of it, or what auto chose."""
    asked, refused = settings.host_pool_bytes, problem.value
    if plan is not None:
        refused = _core.show_size(plan.host_bytes)
    elif refused.isdecimal():
        refused = _core.show_size(int(refused))
    if asked == "auto":
        remedy = f"free memory here or raise its limit, which auto goes by (`hisparse-svc doctor`); {problem.remedy}"
        return replace(problem, value=f"auto, which is {refused} here", remedy=remedy)
    if not isinstance(asked, int):
        value = f"{settings.ratio}, which makes a host pool of {refused}"
        remedy = f"give a smaller --ratio, or --host-pool in its place: {problem.remedy}"
        return replace(problem, field="--ratio", value=value, remedy=remedy)
    shown = _shown_size(asked)
    part = plan is not None and _pool_not_used(settings, plan)
    return replace(problem, value=f"{shown}, of which {refused} can be used" if part else shown)


def _as_flags(
    failure: InvalidInput, settings: ServeConfig, plan: Plan | None = None, *, of_model: Collection[str] = ()
) -> InvalidInput:
    """Name settings as flags, since the service knows most by their bare names, and the pool's size as it was given.

    Args:
        failure: What the core or the service says.
        settings: What it was given.
        plan: What was planned; `None` where that failed.
        of_model: Fields of the model's config.json, which are no settings.
    """

    def flag(field: str) -> str:
        if field in of_model:
            return field
        named = {"request_slots": "max_requests", "MODEL": "model"}.get(field, field)  # the flag's name
        if any(named.startswith(f"{part.tenant}.") for part in settings.tenants):
            return f"--tenants.{named}"
        # What is no setting (the journal file) has a name of two words.
        return named if named.startswith("--") or " " in named else f"--{named.replace('_', '-')}"

    problems = [replace(problem, field=flag(problem.field)) for problem in failure.problems]
    return InvalidInput(
        [_of_host_pool(problem, settings, plan) if problem.field == "--host-pool" else problem for problem in problems]
    )


def _plan_arguments(settings: ServeConfig) -> dict[str, Any]:
    arguments = {
        "kv_dtype": settings.kv_dtype,
        "host_pool": settings.host_pool_bytes,
        "ratio": None if settings.ratio is None else float(settings.ratio),
        "hot_rows": settings.hot_rows,
        "gpu": settings.gpu,
        "kv_bytes": settings.kv_bytes,
        "tp": settings.tp,
        "context": settings.context,
    }
    if settings.host_pool_bytes == "auto":
        arguments["host_pool"] = _auto_pool(settings.assume_memory_bytes)
    return {name: value for name, value in arguments.items() if value is not None}


def _auto_pool(assumed_bytes: int | None) -> int:
    room = _core.machine(assumed_bytes)["headroom"]
    if "auto_bytes" not in room:
        _core.check_host_pool("--host-pool", 1, assumed_bytes)  # raises, and says which limit leaves no room
    return int(room["auto_bytes"])


def _check_backing(settings: ServeConfig) -> None:
    defaults = config.ServeConfig()
    problems = [
        Problem(f"--{name.replace('_', '-')}", str(value), "needs --backing memory", "use that, or leave it out")
        for name in ("mlock", "pages", "numa", "allow_uid")
        if settings.backing != "memory" and (value := getattr(settings, name)) != getattr(defaults, name)
    ]
    if problems:
        raise InvalidInput(problems)


def _check_owner(folder: Path) -> None:
    """Refuse a default folder under /tmp that somebody else has put there before us."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        rule = "is not a folder of yours alone, so others could take the socket's place"
        raise InvalidInput([Problem("--socket", f'"{folder}"', rule, "name a socket elsewhere with --socket PATH")])
