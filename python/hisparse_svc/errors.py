"""Errors that say what to do. The floor of the package: the native module raises these, so nothing else is imported.

::

    HiSparseError
    └── InvalidInput      every problem of one input, together
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Gathered", "HiSparseError", "InvalidInput", "Problem"]

Taken = ParamSpec("Taken")
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with an input.

    Attributes:
        field: Path of the field as the user wrote it: ``index_topk``, ``hot_rows``, ``compress_ratios[3]``.
        value: What was found there; ``missing`` where nothing was.
        rule: The rule it breaks: ``must be a multiple of 64``.
        remedy: What to do about it: ``use 4096 or 4160``.
    """

    field: str
    value: str
    rule: str
    remedy: str

    def __str__(self) -> str:
        """Give the sentence a person reads."""
        return f"{self.field} is {self.value}: {self.rule}; {self.remedy}"


class HiSparseError(Exception):
    """Base of every error this package raises on purpose. Its text says what to do.

    Attributes:
        exit_code: What the command line returns for it: 2 invalid, 3 unreachable, 4 refused.
    """

    exit_code: ClassVar[int] = 4


class InvalidInput(HiSparseError, ValueError):
    """An input that breaks one or more rules.

    Attributes:
        problems: All that is wrong with the input, in the order it was found; never empty.

    Example:
        >>> import hisparse_svc
        >>> try:
        ...     hisparse_svc.plan("glm-5.2", hot_rows=100, ratio=0)
        ... except hisparse_svc.InvalidInput as error:
        ...     print([problem.field for problem in error.problems])
        ['--ratio', '--hot-rows']
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        """Give one line per problem."""
        return "\n".join(str(problem) for problem in self.problems)


class Gathered:
    """What several checks find, so that one input gets all its answers at once.

    Example:
        >>> found = Gathered()
        >>> found.read(int, "4")
        4
        >>> found.end()

    Attributes:
        problems: Those found so far.
    """

    def __init__(self, problems: Iterable[Problem] = ()) -> None:
        self.problems = list(problems)

    def read(self, check: Callable[Taken, Read], *given: Taken.args, **named: Taken.kwargs) -> Read | None:
        """Give what a check gives, or `None` and keep what it found."""
        try:
            return check(*given, **named)
        except InvalidInput as refused:
            self.problems += refused.problems
            return None

    def end(self) -> None:
        """Go on only where nothing was found.

        Raises:
            InvalidInput: All of it.
        """
        if self.problems:
            raise InvalidInput(self.problems)
