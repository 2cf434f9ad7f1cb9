"""What a case or a law demands of a service, and what it ends with where that is not so or not to be seen."""

from __future__ import annotations

from typing import Any


class Broken(Exception):
    """The service broke a rule."""


class Skipped(Exception):
    """The case cannot be shown on this service."""


def check(holds: object, otherwise: str) -> None:
    """Demand something.

    Raises:
        Broken: It is not so.
    """
    if not holds:
        raise Broken(otherwise)


def equal(got: Any, wanted: Any, what: str) -> None:
    """Demand a value.

    Raises:
        Broken: It is another one.
    """
    check(got == wanted, f"{what}: expected {wanted!r}, got {got!r}")
