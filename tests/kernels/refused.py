"""What a call is refused for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hisparse_svc import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable


def refused_fields(call: Callable[[], object]) -> list[str]:
    """Fields that are wrong about a call, each with a rule and what to do; nothing of it was launched."""
    with pytest.raises(InvalidInput) as raised:
        call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # would raise what a launch left behind
    assert all(problem.value and problem.rule and problem.remedy for problem in raised.value.problems)
    return [problem.field for problem in raised.value.problems]
