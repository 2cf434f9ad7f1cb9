"""Types of arguments, looked at before anything else of them is: what is no tensor has no shape to complain about."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real

import torch

from hisparse_svc.errors import InvalidInput, Problem

__all__ = ["Given", "demand_kinds", "each"]

_WORDS: dict[type, tuple[str, str]] = {
    torch.Tensor: ("must be a tensor", "pass a torch.Tensor"),
    Sequence: ("must be a sequence", "pass a list or a tuple"),
    tuple: ("must be a tuple", "pass a tuple"),
    int: ("must be a whole number", "pass an int"),
    str: ("must be text", "pass a str"),
    Real: ("must be a number", "pass a float"),
}


Given = dict[str, tuple[object, type]]
"""Values and the types that they must have, by the names of arguments."""


def each(kind: type, **values: object) -> Given:
    """Say that all of these must be of one type."""
    return {name: (value, kind) for name, value in values.items()}


def demand_kinds(*given: Given) -> None:
    """Refuse what is of another type than it must be, all of it together. No bool is a number.

    Args:
        given: Arguments, as `each` gives them.

    Raises:
        InvalidInput: With every one that is wrong.

    Example:
        >>> demand_kinds(each(int, batch=1.5, top_k=8))
        Traceback (most recent call last):
        hisparse_svc.errors.InvalidInput: batch is 1.5: must be a whole number; pass an int
    """
    named = [(name, value, kind) for some in given for name, (value, kind) in some.items()]
    problems = [_problem(name, value, kind) for name, value, kind in named if not _is(value, kind)]
    if problems:
        raise InvalidInput(problems)


def _is(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not (isinstance(value, bool) and issubclass(int, kind))


def _problem(name: str, value: object, kind: type) -> Problem:
    rule, remedy = _WORDS.get(kind) or (f"must be of type {kind.__name__}", f"pass a hisparse_svc {kind.__name__}")
    plain = value is None or isinstance(value, (bool, int, float, str))
    return Problem(name, repr(value) if plain else f"of type {type(value).__name__}", rule, remedy)
