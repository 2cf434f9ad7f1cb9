"""Who is in a fleet: what every directory gives, and how a member is written.

::

    unix:/run/a.sock      10.0.0.7:7411      decode-0=10.0.0.7:7411
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Protocol

from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.rpc import target as targets

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Iterator

    from hisparse_svc.rpc.values import Capacity

NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)=(.+)")
LONGEST_NAME = 253
"""Letters of a Kubernetes object's name."""


@dataclass(frozen=True, slots=True)
class Hint:
    """What a directory says of a node: all that is known before the node's own first word, and news after it."""

    state: str
    """The directory's word: `serving`, `draining`, `recovering`, `unreachable` or `unknown`."""
    stale: bool
    """Nobody vouches for the node any more; it may be there all the same."""
    heard_at: float
    """When this was new, seconds of `time.monotonic`."""
    capacity: Capacity | None
    """What the node had then."""


@dataclass(frozen=True, slots=True)
class Member:
    """One node of a fleet."""

    name: str
    """What it is called in errors and tables, unique in the fleet: a pod's name, or its target."""
    target: str
    """Where it is: `unix:PATH` or `HOST:PORT`."""
    hint: Hint | None = field(default=None, compare=False)
    """What the directory says of it; two members that differ in nothing else are the same."""


class Directory(Protocol):
    """Something that knows who is in the fleet. `str` of it says where, for errors."""

    def follow(self, closing: threading.Event) -> Iterator[tuple[Member, ...]]:
        """Give all members, and again all of them whenever one came or left, until `closing` is set.

        It may block, and runs in a thread of its own; between two looks it waits on `closing`. Where it ends nothing
        changes any more. Where it raises, the fleet keeps the members that it knows and follows again after a rest.
        """
        ...


def read_member(text: str, field: str = "nodes") -> Member:
    """Read one member as people write it.

    Raises:
        InvalidInput: Its target cannot be read.
    """
    given = text.strip()
    named = NAMED.fullmatch(given)
    odd, _, there = given.partition("=")
    if named is None and there and targets.HOST_PORT.fullmatch(there):
        rule = "is no name of a node: it has letters of ASCII, digits, '.', '_' and '-', the first a letter or digit"
        raise InvalidInput([Problem(field, f'"{odd[:80]}"', rule, f"write decode-0={there}")])
    name, target = (named[1], named[2]) if named else (given, given)
    if not target:
        raise InvalidInput([Problem(field, '""', "must name a target", "write unix:PATH, HOST:PORT or NAME=HOST:PORT")])
    if named and len(name) > LONGEST_NAME:
        rule = f"must be at most {LONGEST_NAME} letters"
        raise InvalidInput([Problem(field, f'"{name[:40]}…", {len(name)} letters', rule, "name it shorter")])
    return Member(name[:LONGEST_NAME], targets.resolve(target, field).address)


def read_members(texts: Iterable[str], fields: Iterable[str] = repeat("nodes")) -> tuple[Member, ...]:
    """Read several, each under the field of its own that errors name; one said twice is one member.

    A name that stands for two targets is refused, and so is a node of two names: its room would count twice.

    Raises:
        InvalidInput: Everything wrong with them.
    """
    problems: list[Problem] = []
    members: dict[str, Member] = {}
    names: dict[str, str] = {}
    for text, where in zip(texts, fields, strict=False):
        try:
            member = read_member(text, where)
        except InvalidInput as refused:
            problems += refused.problems
            continue
        known = members.setdefault(member.name, member)
        if known != member:
            rule = f"stands for {known.target} and for {member.target}"
            problems.append(Problem(where, f'"{member.name}"', rule, "give every node a name of its own"))
        first = names.setdefault(member.target, member.name)
        if first != member.name:
            rule = f"is at {member.target}, where {first} is too"
            problems.append(Problem(where, f'"{member.name}"', rule, "name every node once"))
    if problems:
        raise InvalidInput(problems)
    return tuple(members.values())
