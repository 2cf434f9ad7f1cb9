"""How a value of `serve` is read: from a flag's text, a variable's, or what TOML gives.

::

    whole("--seats", "12") ─► 12          size("host_pool in f.toml", "1GiB") ─► 1073741824
    whole("--seats", "x")  ─► InvalidInput, by the name of where it came from
"""

from __future__ import annotations

import difflib
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hisparse_svc import _core
from hisparse_svc.errors import InvalidInput, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_WINDOW_S = 3_600
"""Longest reclaim window, in seconds: the longest life that a lease may ask for."""


def size(field: str, given: Any) -> int:
    """Read bytes: 512MiB, 160GiB, or a number."""
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    return _core.parse_size(given if isinstance(given, str) else repr(given), field)


def size_or_auto(field: str, given: Any) -> int | Literal["auto"]:
    """Read bytes, or the word auto."""
    return "auto" if given == "auto" else size(field, given)


def whole(field: str, given: Any) -> int:
    """Read a whole number from 0."""
    if isinstance(given, str) and re.fullmatch(r"[0-9]{1,19}", given):
        return int(given)
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 1 << 63:
        return given
    raise bad(field, given, "must be a whole number from 0", "write digits only")


def window(field: str, given: Any) -> int:
    """Read seconds of the reclaim window."""
    rule = f"must be a whole number of seconds, 1 to {MAX_WINDOW_S}"
    try:
        seconds = whole(field, given)
    except InvalidInput:
        raise bad(field, given, rule, "write digits only") from None
    if not 1 <= seconds <= MAX_WINDOW_S:
        raise bad(field, given, rule, "give a number in that range")
    return seconds


def ratio(field: str, given: Any) -> str:
    """Read a decimal number, as it is written."""
    text = str(given)
    if isinstance(given, bool) or not re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18})?", text):
        raise bad(field, given, "must be a decimal number", "write 4 or 7.5")
    return text


def truth(field: str, given: Any) -> bool:
    """Read true or false, in their usual spellings."""
    if isinstance(given, bool):
        return given
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if isinstance(given, str) and given.lower() in words:
        return words[given.lower()]
    raise bad(field, given, "must be true or false", "write true or false")


def text(field: str, given: Any) -> str:
    """Read text that is not empty."""
    if isinstance(given, (str, Path)) and str(given):
        return str(given)
    raise bad(field, given, "must be text, and not empty", "write it in quotes, or leave it out")


def word(*words: str) -> Callable[[str, Any], str]:
    """Read one word of these."""

    def read(field: str, given: Any) -> str:
        if given in words:
            return str(given)
        near = difflib.get_close_matches(str(given), words, n=1)
        raise bad(field, given, f"must be one of {', '.join(words)}", f"use {near[0] if near else words[0]}")

    return read


def uids(field: str, given: Any) -> tuple[int, ...]:
    """Read user ids, one or several."""
    parts = given if isinstance(given, (list, tuple)) else [given]
    texts = [text.strip() for part in parts for text in str(part).split(",")]
    if not texts or not all(re.fullmatch(r"[0-9]{1,10}", text) and int(text) < (1 << 32) - 1 for text in texts):
        raise bad(field, given, "must be user ids", "write numbers, several as 1000,1001")
    return tuple(int(text) for text in texts)


def entries(field: str, given: Any) -> str:
    """Read entries with commas between them, or a list of them."""
    if isinstance(given, (list, tuple)) and given:
        return ", ".join(text(field, entry) for entry in given)
    return text(field, given)


@dataclass(frozen=True, slots=True)
class TenantPart:
    """What one tenant (`*`: each that is not named) may hold of one pool."""

    tenant: str
    pool: str
    floor: int
    """Kept for it at all times, in the pool's unit."""
    ceiling: int | None
    """Most it may hold; `None` for no bound but the pool."""


def tenants(field: str, given: Any) -> tuple[TenantPart, ...]:
    """Read what tenants may hold, as a table or as text."""
    if isinstance(given, (list, tuple)) and all(isinstance(part, TenantPart) for part in given):
        return tuple(given)
    found: list[TenantPart] = []
    problems: list[Problem] = []
    for tenant, pool, span in _spans(field, given, problems):
        match = SPAN.fullmatch(str(span).strip())
        if match is None or isinstance(span, bool):
            rule = f"must be FLOOR..CEILING: {pool} of tenant {tenant}"
            problems.append(problem(field, span, rule, TENANT_REMEDY))
            continue
        floor, dots, ceiling = match.groups()
        most = ceiling if dots else floor
        found.append(TenantPart(tenant, pool, int(floor or 0) if dots else 0, int(most) if most else None))
    twice = [each for each, times in Counter((part.tenant, part.pool) for part in found).items() if times > 1]
    for tenant, pool in twice:
        rule = f"names {pool} of tenant {tenant} more than once, and one would hide the other"
        problems.append(problem(field, given, rule, "say it once, as FLOOR..CEILING"))
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
                problems.append(problem(field, pools, f"{TENANT_RULE}: tenant {tenant} has none", TENANT_REMEDY))
        return
    for text in given if isinstance(given, (list, tuple)) else [given]:
        for part in str(text).split(";"):
            name, colon, rest = part.partition(":")
            spans = [span.partition("=") for span in rest.split(",")]
            if colon and name.strip() and all(pool.strip() and equals for pool, equals, _ in spans):
                yield from ((name.strip(), pool.strip(), span.strip()) for pool, _, span in spans)
            else:
                problems.append(problem(field, part.strip(), TENANT_RULE, TENANT_REMEDY))


SPAN = re.compile(r"([0-9]{0,18})(\.\.)?([0-9]{0,18})(?<=[0-9.])")
TENANT_RULE = "must name tenants and what they may hold of each pool"
TENANT_REMEDY = "write `search: seats=4..16, host_pages=..5000; *: seats=..8`: floor and ceiling, either left out"


def socket(field: str, given: Any) -> Path:
    """Read a path that can be printed."""
    read = path(field, given)
    if not os.fspath(read).isprintable():  # it stands in the line that says where the service is
        raise bad(field, repr(os.fspath(read)), "must be printable text", "choose another name")
    return read


def path(field: str, given: Any) -> Path:
    """Read a path."""
    return Path(text(field, given))


def address(field: str, given: Any) -> str | None:
    """Read an address; off for none."""
    return None if given == "off" else text(field, given)


def problem(field: str, given: Any, rule: str, remedy: str) -> Problem:
    """Say what is wrong with a value."""
    shown = f'"{given}"' if isinstance(given, str) else str(given)
    return Problem(field, shown[:80], rule, remedy)


def bad(field: str, given: Any, rule: str, remedy: str) -> InvalidInput:
    """Refuse a value."""
    return InvalidInput([problem(field, given, rule, remedy)])


LISTS = (uids, entries, tenants)
"""Readers of lists: a flag of theirs may be given again, and adds to what was given before."""
