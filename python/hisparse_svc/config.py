"""How `serve` is configured: one table of settings, and three places that they may come from.

::

    --hot-rows 4096   beats   HISPARSE_HOT_ROWS=4096   beats   hot_rows = 4096 in --config FILE   beats   the default

The dataclass below is the table: flags, variables and keys of the file are all made from it. A variable with our prefix
or a key that is not in it is an error, because a misspelt limit that is silently ignored is found too late.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hisparse_svc import _core, files
from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.rpc.target import VARIABLE as TARGET_VARIABLE
from hisparse_svc.rpc.target import default_socket
from hisparse_svc.rpc.tls import NAME_VARIABLE
from hisparse_svc.rpc.tls import VARIABLES as TLS_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PREFIX = "HISPARSE_"

OTHERS = (
    f"{PREFIX}CONFIG",
    TARGET_VARIABLE,
    *TLS_VARIABLES.values(),
    NAME_VARIABLE,
    f"{PREFIX}CACHE_DIR",
    f"{PREFIX}SHARED",
)
"""Variables of ours that are no settings: the file, where clients look and what they show, where compiled kernels are
kept, and where the tests find their vectors."""

SERVICE_LINKS = re.compile(r"SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP)(_(ADDR|PORT|PROTO))?)?")
"""What Kubernetes sets in a pod for a Service that happens to be called `hisparse`; none of it is meant for us."""


MAX_WINDOW_S = 3_600
"""Longest reclaim window, in seconds: the longest life that a lease may ask for."""


def _size(field: str, given: Any) -> int:
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    return _core.parse_size(given if isinstance(given, str) else repr(given), field)


def _size_or_auto(field: str, given: Any) -> int | Literal["auto"]:
    return "auto" if given == "auto" else _size(field, given)


def _whole(field: str, given: Any) -> int:
    if isinstance(given, str) and re.fullmatch(r"[0-9]{1,19}", given):
        return int(given)
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 1 << 63:
        return given
    raise _bad(field, given, "must be a whole number from 0", "write digits only")


def _window(field: str, given: Any) -> int:
    rule = f"must be a whole number of seconds, 1 to {MAX_WINDOW_S}"
    try:
        seconds = _whole(field, given)
    except InvalidInput:
        raise _bad(field, given, rule, "write digits only") from None
    if not 1 <= seconds <= MAX_WINDOW_S:
        raise _bad(field, given, rule, "give a number in that range")
    return seconds


def _ratio(field: str, given: Any) -> str:
    text = str(given)
    if isinstance(given, bool) or not re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18})?", text):
        raise _bad(field, given, "must be a decimal number", "write 4 or 7.5")
    return text


def _truth(field: str, given: Any) -> bool:
    if isinstance(given, bool):
        return given
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if isinstance(given, str) and given.lower() in words:
        return words[given.lower()]
    raise _bad(field, given, "must be true or false", "write true or false")


def _text(field: str, given: Any) -> str:
    if isinstance(given, (str, Path)) and str(given):
        return str(given)
    raise _bad(field, given, "must be text, and not empty", "write it in quotes, or leave it out")


def _word(*words: str) -> Callable[[str, Any], str]:
    def read(field: str, given: Any) -> str:
        if given in words:
            return str(given)
        near = difflib.get_close_matches(str(given), words, n=1)
        raise _bad(field, given, f"must be one of {', '.join(words)}", f"use {near[0] if near else words[0]}")

    return read


def _uids(field: str, given: Any) -> tuple[int, ...]:
    parts = given if isinstance(given, (list, tuple)) else [given]
    texts = [text.strip() for part in parts for text in str(part).split(",")]
    if not texts or not all(re.fullmatch(r"[0-9]{1,10}", text) and int(text) < (1 << 32) - 1 for text in texts):
        raise _bad(field, given, "must be user ids", "write numbers, several as 1000,1001")
    return tuple(int(text) for text in texts)


def _entries(field: str, given: Any) -> str:
    if isinstance(given, (list, tuple)) and given:
        return ", ".join(_text(field, entry) for entry in given)
    return _text(field, given)


@dataclass(frozen=True, slots=True)
class TenantPart:
    """What one tenant (`*`: each that is not named) may hold of one pool."""

    tenant: str
    pool: str
    floor: int
    """Kept for it at all times, in the pool's unit."""
    ceiling: int | None
    """Most it may hold; `None` for no bound but the pool."""


def _tenants(field: str, given: Any) -> tuple[TenantPart, ...]:
    if isinstance(given, (list, tuple)) and all(isinstance(part, TenantPart) for part in given):
        return tuple(given)
    found: list[TenantPart] = []
    problems: list[Problem] = []
    for tenant, pool, span in _spans(field, given, problems):
        match = SPAN.fullmatch(str(span).strip())
        if match is None or isinstance(span, bool):
            rule = f"must be FLOOR..CEILING: {pool} of tenant {tenant}"
            problems.append(_problem(field, span, rule, TENANT_REMEDY))
            continue
        floor, dots, ceiling = match.groups()
        most = ceiling if dots else floor
        found.append(TenantPart(tenant, pool, int(floor or 0) if dots else 0, int(most) if most else None))
    twice = [each for each, times in Counter((part.tenant, part.pool) for part in found).items() if times > 1]
    for tenant, pool in twice:
        rule = f"names {pool} of tenant {tenant} more than once, and one would hide the other"
        problems.append(_problem(field, given, rule, "say it once, as FLOOR..CEILING"))
    if problems:
        raise InvalidInput(problems)
    return tuple(found)


def _spans(field: str, given: Any, problems: list[Problem]) -> Iterator[tuple[str, str, Any]]:
    """Give each tenant's pools and what is written of them: from a table, from text, or from several texts."""
    if isinstance(given, dict):
        for tenant, pools in given.items():
            if isinstance(pools, dict) and pools:
                yield from ((tenant, pool, span) for pool, span in pools.items())
            else:
                problems.append(_problem(field, pools, f"{TENANT_RULE}: tenant {tenant} has none", TENANT_REMEDY))
        return
    for text in given if isinstance(given, (list, tuple)) else [given]:
        for part in str(text).split(";"):
            name, colon, rest = part.partition(":")
            spans = [span.partition("=") for span in rest.split(",")]
            if colon and name.strip() and all(pool.strip() and equals for pool, equals, _ in spans):
                yield from ((name.strip(), pool.strip(), span.strip()) for pool, _, span in spans)
            else:
                problems.append(_problem(field, part.strip(), TENANT_RULE, TENANT_REMEDY))


SPAN = re.compile(r"([0-9]{0,18})(\.\.)?([0-9]{0,18})(?<=[0-9.])")
TENANT_RULE = "must name tenants and what they may hold of each pool"
TENANT_REMEDY = "write `search: seats=4..16, host_pages=..5000; *: seats=..8`: floor and ceiling, either left out"


def _socket(field: str, given: Any) -> Path:
    path = _path(field, given)
    if not os.fspath(path).isprintable():  # it stands in the line that says where the service is
        raise _bad(field, repr(os.fspath(path)), "must be printable text", "choose another name")
    return path


def _path(field: str, given: Any) -> Path:
    return Path(_text(field, given))


def _address(field: str, given: Any) -> str | None:
    return None if given == "off" else _text(field, given)


def _problem(field: str, given: Any, rule: str, remedy: str) -> Problem:
    shown = f'"{given}"' if isinstance(given, str) else str(given)
    return Problem(field, shown[:80], rule, remedy)


def _bad(field: str, given: Any, rule: str, remedy: str) -> InvalidInput:
    return InvalidInput([_problem(field, given, rule, remedy)])


TOGETHER = "cannot be given together with {}"
EXCLUDED = {
    "ratio": ("host_pool", TOGETHER),
    "kv_bytes": ("gpu", TOGETHER),
    "context": ("ratio", "has no part in the sizes beside {}"),
}
"""Settings that cannot be given beside another one, and why."""

LISTS = (_uids, _entries, _tenants)
"""Readers of lists: a flag of theirs may be given again, and adds to what was given before."""


def _setting(read: Callable[[str, Any], Any], metavar: str, text: str, default: Any = None, name: str = "") -> Any:
    metadata = {"read": read, "metavar": metavar, "help": text, "name": name}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """What `serve` runs with."""

    model: str = _setting(_text, "MODEL", "The model served: a preset, a config.json or its folder.", "glm-5.2")
    kv_dtype: str = _setting(
        _word("bfloat16", "fp8_e4m3", "fp8_raw", "float32"),
        "bfloat16|fp8_e4m3|fp8_raw|float32",
        "How main KV is stored.",
        "fp8_e4m3",
    )
    host_pool_bytes: int | Literal["auto"] | None = _setting(
        _size_or_auto, "SIZE|auto", "Size of the host pool.  [1GiB, unless --ratio is given]", name="host_pool"
    )
    ratio: str | None = _setting(_ratio, "R", "Logical tokens per device token, instead of --host-pool.")
    hot_rows: int | None = _setting(_whole, "N", "Rows of one hot buffer; a multiple of 64.")
    gpu: str | None = _setting(_text, "NAME", "The GPU planned for: h200, b200, …")
    kv_bytes: int | None = _setting(_size, "SIZE", "GPU memory left for KV, instead of --gpu.  [20GiB]")
    tp: int = _setting(_whole, "N", "Ranks of tensor parallelism.", 1)
    context: int | None = _setting(
        _whole,
        "N",
        "Longest context served, in tokens: GPU memory is split for it, as `plan --context` does. Longer requests are "
        "taken while they fit.  [the model's longest]",
    )
    seats: int | None = _setting(_whole, "N", "Hot buffers, where fewer than fit are wanted.")
    max_requests: int = _setting(_whole, "N", "Rows of the engine's request tables.", 1_024)
    backing: str = _setting(
        _word("memory", "none"),
        "memory|none",
        "memory: this process owns the pool's bytes and engines attach. none: it counts pages, an engine owns them.",
        "memory",
    )
    state_dir: Path | None = _setting(
        _path, "DIR", "Folder in memory (tmpfs, mode 0700) where pool and journal outlive this process and its engine."
    )
    reclaim_window_s: int = _setting(
        _window,
        "S",
        f"Seconds that a dead engine's leases wait for its successor, at most {MAX_WINDOW_S}.",
        120,
        name="reclaim_window",
    )
    assume_memory_bytes: int | None = _setting(
        _size, "SIZE", "Go by this much host memory instead of what the machine reports.", name="assume_memory"
    )
    mlock: bool = _setting(_truth, "", "Lock the pool into memory; only with --backing memory.", default=False)
    pages: str = _setting(
        _word("auto", "huge", "thp", "plain"),
        "auto|huge|thp|plain",
        "The pool's pages: huge ones set aside, transparent huge ones, plain ones; auto takes the best there is.",
        "auto",
    )
    numa: str = _setting(
        _text,
        "any|prefer:NODE|bind:NODE",
        "Memory node of the pool; segments take several (prefer:0,1) in turn. prefer falls back, bind does not.",
        "any",
    )
    allow_uid: tuple[int, ...] | None = _setting(
        _uids,
        "UID[,UID…]",
        "Users that may attach besides this one; they reach the socket by its folder's mode. May be repeated.",
    )
    tenants: tuple[TenantPart, ...] = _setting(
        _tenants,
        "QUOTAS",
        "What tenants may hold, as floor..ceiling per pool: 'search: seats=4..16; *: seats=..8'; * is each other one. "
        "May be repeated.",
        (),
    )
    layer_groups: str = _setting(
        _word("auto", "off"), "auto|off", "Group layers that share an indexer; only with --backing memory.", "auto"
    )
    socket: Path = _setting(
        _socket, "PATH", "The Unix socket.  [$XDG_RUNTIME_DIR/hisparse/hisparse.sock]", default_socket
    )
    listen: str | None = _setting(
        _address, "HOST:PORT", "Serve gRPC on this TCP address too; other than loopback only with certificates."
    )
    tls_cert: Path | None = _setting(_path, "FILE.pem", "The service's certificate for --listen, with its chain.")
    tls_key: Path | None = _setting(_path, "FILE.pem", "The key of --tls-cert.")
    tls_client_ca: Path | None = _setting(_path, "FILE.pem", "The authorities whose clients may connect to --listen.")
    access: str | None = _setting(
        _entries,
        "WHO=ROLE…",
        "Who may do what, and nobody else anything: uid:1001=router, gid:2000=engine, cert:NAME=admin, …@TENANT. "
        "Entries have commas between them; may be repeated, which adds to the list.",
    )
    admits_per_second: int | None = _setting(_whole, "N", "Most Admits per second; more are shed.  [no limit]")
    max_connections: int | None = _setting(_whole, "N", "Most connections of gRPC.  [2048]")
    max_connections_per_user: int | None = _setting(_whole, "N", "Most of one uid, certificate or address.  [1024]")
    max_calls_per_peer: int | None = _setting(_whole, "N", "Most calls of one process at a time.  [1024]")
    max_calls: int | None = _setting(_whole, "N", "Most calls at a time.  [8192]")
    log: str = _setting(
        _word("text", "json"),
        "text|json",
        "What stderr says: notices as text, or those, every call and every change of standing as JSON.",
        "text",
    )
    exemplars: bool = _setting(
        _truth, "", "Keep callers' traces as exemplars of hisparse_admit_seconds, for OpenMetrics.", default=False
    )
    http: str | None = _setting(
        _address,
        "HOST:PORT",
        "Where /healthz, /readyz, /metrics and, for this machine, the page are; off for nowhere.",
        "127.0.0.1:7412",
    )


def settings() -> dict[str, dataclasses.Field[Any]]:
    """Give the table by name: `host_pool` is `--host-pool`, `HISPARSE_HOST_POOL` and `host_pool = …`."""
    return {field.metadata["name"] or field.name: field for field in dataclasses.fields(ServeConfig)}


def load(
    flags: Mapping[str, Any], environment: Mapping[str, str] | None = None, file: str | os.PathLike[str] | None = None
) -> ServeConfig:
    """As `read`, where all that is left to do with problems is to raise them.

    Raises:
        InvalidInput: Every unknown name and every value that cannot be read, with where it came from.
    """
    settings, problems, _ = read(flags, environment, file)
    if problems:
        raise InvalidInput(problems)
    return settings


def read(
    flags: Mapping[str, Any], environment: Mapping[str, str] | None = None, file: str | os.PathLike[str] | None = None
) -> tuple[ServeConfig, list[Problem], set[str]]:
    """Put flags, environment and file together.

    Args:
        flags: Settings by name, as given on the command line or by a Python caller; `None` means not given, and a
            tuple that a flag was given several times: lists add up, all else is refused.
        environment: Variables; the process's own by default.
        file: A TOML file; by default the one that `HISPARSE_CONFIG` names.

    Returns:
        The settings that could be read, the others at their defaults; every unknown name and every value that cannot
        be read, with where it came from; and the names of the settings that these are of.
    """
    variables = os.environ if environment is None else environment
    problems: list[Problem] = []
    given: dict[str, tuple[str, Any]] = {}
    named = file if file is not None else variables.get(f"{PREFIX}CONFIG")
    if named:
        given |= _from_file(Path(named), problems)
    given |= _from_environment(variables, problems)
    given |= _from_flags(flags, problems)

    chosen: dict[str, Any] = {}
    unread: set[str] = set()
    for name, (source, value) in given.items():
        field = settings()[name]
        read = field.metadata["read"]
        try:
            if isinstance(value, tuple) and read not in LISTS:
                rule = "was given more than once, and the last would hide the others"
                raise _bad(source, ", ".join(map(str, value)), rule, "keep the one that is meant")
            chosen[field.name] = read(source, value)
        except InvalidInput as failure:
            problems += failure.problems
            unread.add(name)
    for name, why in EXCLUDED.items():
        other, rule = why
        if {name, other} <= given.keys():
            source, value = given[name]
            unread.add(name)
            problems.append(Problem(source, str(value), rule.format(given[other][0]), "choose one of them"))
    if "host_pool" not in given and "ratio" not in given:
        chosen["host_pool_bytes"] = 1 << 30
    return ServeConfig(**chosen), problems, unread


def check_environment(environment: Mapping[str, str] | None = None) -> None:
    """Refuse variables with our prefix that nothing reads; commands that ask a service look at them as `serve` does.

    Raises:
        InvalidInput: Every such variable, and the name that was meant.
    """
    problems: list[Problem] = []
    _from_environment(os.environ if environment is None else environment, problems)
    if problems:
        raise InvalidInput(problems)


def _from_flags(flags: Mapping[str, Any], problems: list[Problem]) -> dict[str, tuple[str, Any]]:
    given = {}
    for name, value in flags.items():
        flag = f"--{name.replace('_', '-')}"
        if name not in settings():
            problems.append(_unknown(flag, value, name, settings(), lambda near: f"--{near.replace('_', '-')}"))
        elif value is not None:
            given[name] = (flag, value)
    return given


def _from_environment(variables: Mapping[str, str], problems: list[Problem]) -> dict[str, tuple[str, Any]]:
    known = {f"{PREFIX}{name.upper()}": name for name in settings()}
    given = {}
    for variable in sorted(variables):
        if not variable.startswith(PREFIX) or variable in OTHERS:
            continue
        if variable in known:
            given[known[variable]] = (variable, variables[variable])
        elif not SERVICE_LINKS.fullmatch(variable.removeprefix(PREFIX)):
            names = [*known, *OTHERS[:-1]]
            problems.append(
                _unknown(variable, variables[variable], variable, names, str, kind="variable of this program")
            )
    return given


def _from_file(path: Path, problems: list[Problem]) -> dict[str, tuple[str, Any]]:
    try:
        document = tomllib.loads(files.read_text(path, "--config", most_bytes=_core.MAX_SETTINGS_BYTES))
    except InvalidInput as refused:
        problems += refused.problems
        return {}
    except tomllib.TOMLDecodeError as failure:
        problems.append(Problem("--config", f'"{path}"', f"must be TOML: {failure}", "mend the line"))
        return {}
    given = {}
    for name, value in document.items():
        if name in settings():
            given[name] = (f"{name} in {path}", value)
        else:
            problems.append(_unknown(f"{name} in {path}", value, name, settings(), str))
    return given


def _unknown(
    field: str, value: Any, name: str, known: Any, write: Callable[[str], str], *, kind: str = "setting of `serve`"
) -> Problem:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    remedy = f"did you mean {write(near[0])}?" if near else f"use one of {', '.join(map(write, known))}"
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    return Problem(field, shown[:80], f"no {kind} has this name", remedy)
