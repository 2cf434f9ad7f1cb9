"""What both shells take, read once: the directory, the certificates, the times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from hisparse_svc import _core
from hisparse_svc.errors import Gathered
from hisparse_svc.fleet import directories
from hisparse_svc.fleet.book import Book
from hisparse_svc.fleet.directories import StaticList
from hisparse_svc.rpc import calls
from hisparse_svc.rpc.target import resolve

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hisparse_svc.fleet.directories import Directory, Member
    from hisparse_svc.rpc.tls import Tls

CLOSE_S = 2.0
"""How long a fleet that is closed goes on taking back what may be held; after it the ttl does."""

FOLLOW_REST_S = 30.0
"""Longest rest between two tries to follow a directory that fails."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a fleet behaves."""

    directory: Directory
    tls: Tls | None
    lengths: tuple[int, ...]
    timeout_s: float
    attempt_s: float
    ttl_s: float

    def tls_for(self, target: str) -> Tls | None:
        """Give the certificates for one node; a Unix socket takes none."""
        return None if resolve(target).socket is not None else self.tls


class Fields(TypedDict, total=False):
    """What both fleets take by name; `hisparse_svc.fleet.Fleet` says what each means."""

    tls: Tls | None
    lengths: Iterable[int]
    policy: str | None
    choices: int | None
    timeout_s: float
    attempt_s: float | None
    ttl_s: float | None
    stale_after_s: float | None


def read(
    nodes: str | Iterable[str | Member] | Directory,
    *,
    tls: Tls | None = None,
    lengths: Iterable[int] = (),
    policy: str | None = None,
    choices: int | None = None,
    timeout_s: float = calls.TIMEOUT_S,
    attempt_s: float | None = None,
    ttl_s: float | None = None,
    stale_after_s: float | None = None,
) -> tuple[Settings, Book]:
    """Read what a fleet was given; gives its settings, and a book with no node yet.

    Raises:
        InvalidInput: Everything wrong with it; with the book's rules only where nothing else is.
    """
    found, defaults, asked = Gathered(), _core.fleet_defaults(), tuple(lengths)
    directory = found.read(_directory, nodes)
    found.read(calls.get_capacity, asked)  # else every node would look silent, and say why
    timeout = found.read(calls.timeout, timeout_s) or calls.TIMEOUT_S
    attempt = found.read(calls.timeout, defaults["attempt_s"] if attempt_s is None else attempt_s, "attempt_s")
    ttl = found.read(calls.timeout, defaults["ttl_s"] if ttl_s is None else ttl_s, "ttl_s")
    if tls is not None:
        found.read(tls.credentials)
    found.end()
    assert directory is not None and attempt is not None and ttl is not None  # noqa: S101, PT018 - nothing was found
    settings = Settings(directory, tls, asked, timeout, attempt, ttl)
    return settings, Book(policy=policy, choices=choices, stale_after_s=stale_after_s)


def _directory(nodes: Any) -> Directory:
    if isinstance(nodes, str):
        return directories.read(nodes)
    if hasattr(nodes, "follow"):
        given: Directory = nodes
        return given
    return StaticList(nodes)
