"""A case: one behaviour of one method, and what it needs of the service to be shown.

::

    @case("atomic", needs=["idle"])
    def a_full_pool_is_busy(server): ...      ──► CASES["admit.a_full_pool_is_busy"]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hisparse_svc.conformance.needs import NEEDS
from hisparse_svc.conformance.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hisparse_svc.conformance.server import Server


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        name: `method.behaviour`.
        rule: Which of `RULES` it shows.
        needs: Which of `NEEDS` it has.
        text: The behaviour, in a sentence.
        show: Shows it, or raises `Broken` or `Skipped`.
    """

    name: str
    rule: str
    needs: tuple[str, ...]
    text: str
    show: Callable[[Server], None]


CASES: dict[str, Case] = {}
"""All cases by name, in order of their methods."""


def case(rule: str, *, needs: Iterable[str] = ()) -> Callable[[Callable[[Server], None]], Callable[[Server], None]]:
    """Register a function as a case of the method that its file is named after."""

    def register(show: Callable[[Server], None]) -> Callable[[Server], None]:
        method = show.__module__.rpartition(".")[2]
        made = Case(f"{method}.{show.__name__}", rule, tuple(needs), (show.__doc__ or "").strip(), show)
        if rule not in RULES or not set(made.needs) <= set(NEEDS) or not made.text or made.name in CASES:
            raise ValueError(f"{made.name} is no good case: look at its rule, needs, text and name")
        CASES[made.name] = made
        return show

    return register
