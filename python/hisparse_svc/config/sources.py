"""Flags, environment and file put together: which goes before which, and what names there are.

::

    --hot-rows 4096   beats   HISPARSE_HOT_ROWS=4096   beats   hot_rows = 4096 in --config FILE   beats   the default

A variable with our prefix or a key that is not in the table is an error, because a misspelt limit that is silently
ignored is found too late.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisparse_svc import _core, files
from hisparse_svc.config import values
from hisparse_svc.config.table import ServeConfig, settings
from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.rpc.target import VARIABLE as TARGET_VARIABLE
from hisparse_svc.rpc.tls import NAME_VARIABLE
from hisparse_svc.rpc.tls import VARIABLES as TLS_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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

TOGETHER = "cannot be given together with {}"
EXCLUDED = {
    "ratio": ("host_pool", TOGETHER),
    "kv_bytes": ("gpu", TOGETHER),
    "context": ("ratio", "has no part in the sizes beside {}"),
}
"""Settings that cannot be given beside another one, and why."""


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
            if isinstance(value, tuple) and read not in values.LISTS:
                rule = "was given more than once, and the last would hide the others"
                raise values.bad(source, ", ".join(map(str, value)), rule, "keep the one that is meant")
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
