"""The first backend of an order that can answer; where none can, the reason that helps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kernels import DeviceUnavailable
from hisparse_svc.kernels.choice import first_able, installed, named


@dataclass
class Fake:
    """Refuses and lacks what it is told to."""

    refused: list[Problem] = field(default_factory=list)
    lacking: str = ""

    def refusals(self, _call: Any) -> list[Problem]:
        return self.refused

    def missing(self, _call: Any) -> str:
        return self.lacking


WRONG = Problem("rows", "fp32 rows", "must be fp8", "convert them")


def test_the_first_that_can_is_taken() -> None:
    able = Fake()
    assert first_able([Fake(lacking="no GPU"), Fake([WRONG]), able, Fake()], None) is able


def test_a_wrong_call_is_said_before_what_the_machine_lacks() -> None:
    with pytest.raises(InvalidInput, match="must be fp8") as refused:
        first_able([Fake(lacking="no GPU"), Fake([WRONG])], None)
    assert list(refused.value.problems) == [WRONG]


def test_what_an_absent_backend_would_refuse_is_not_held_against_the_call() -> None:
    with pytest.raises(DeviceUnavailable, match="no GPU; no wheel; use CPU tensors"):
        first_able([Fake([WRONG], lacking="no GPU"), Fake(lacking="no wheel")], None)


def test_a_named_one_is_never_replaced() -> None:
    backends = {"wheel": Fake(lacking="no wheel"), "strict": Fake([WRONG], lacking="no GPU")}
    with pytest.raises(DeviceUnavailable, match="no wheel; leave backend out"):
        named("wheel", backends, None)
    with pytest.raises(InvalidInput, match="must be fp8"):
        named("strict", backends, None)
    with pytest.raises(InvalidInput, match="must be auto or one of wheel, strict"):
        named("weel", backends, None)


def test_a_module_of_a_package_that_is_not_there_is_not_installed() -> None:
    assert installed("json.decoder")
    assert not installed("json.no_such_module")
    assert not installed("no_such_package.of_ours")
