"""Python values without a JSON form are problems with their path: never a panic, never taken for absent."""

from __future__ import annotations

from typing import Any

import hisparse_svc
import pytest
from hisparse_svc.planner.plan import plan_from


class Integer:
    def __index__(self) -> int:
        return 4096


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def endless() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


VALUES: dict[str, Any] = {
    "nan": float("nan"),
    "infinity": float("inf"),
    "beyond_64_bits": 10**40,
    "beyond_printing": 10**5000,
    "below_64_bits": -(2**63) - 1,
    "object": object(),
    "hostile": Hostile(),
    "bytes": b"4096",
    "set": {4096},
    "surrogate": "\ud800",
    "endless": endless(),
    "nested": [[float("nan")]],
}


@pytest.mark.parametrize("name", VALUES)
def test_it_is_a_problem_of_its_flag(name: str) -> None:
    with pytest.raises(hisparse_svc.InvalidInput) as refusal:
        plan_from("glm-5.2", {"hot_rows": VALUES[name], "tp": 0})
    fields = [problem.field for problem in refusal.value.problems]
    assert any(field.startswith("--hot-rows") for field in fields), fields
    assert "--tp" in fields, "what else is wrong is said too"


def test_an_integer_by_protocol_is_an_integer() -> None:
    assert plan_from("glm-5.2", {"hot_rows": Integer()}).hot_rows == 4096


def test_a_key_that_is_no_text_is_a_problem() -> None:
    with pytest.raises(hisparse_svc.InvalidInput):
        plan_from("glm-5.2", {7: 1})  # type: ignore[dict-item]


def test_errors_survive_pickling() -> None:
    import pickle  # noqa: PLC0415 - what a process pool does with an exception

    with pytest.raises(hisparse_svc.InvalidInput) as refusal:
        hisparse_svc.plan("glm-5.2", ratio=0)
    again = pickle.loads(pickle.dumps(refusal.value))  # noqa: S301 - as above
    assert isinstance(again, hisparse_svc.HiSparseError)
    assert again.problems == refusal.value.problems
    assert str(again) == str(refusal.value)


@pytest.mark.parametrize(
    "model", [None, 5, b"glm-5.2", object(), Hostile(), ["glm-5.2"], "\ud800", "./\ud800", "a\0/b"]
)
def test_what_names_no_model_is_a_problem_of_the_model(model: Any) -> None:
    with pytest.raises(hisparse_svc.InvalidInput) as refusal:
        hisparse_svc.plan(model, tp=0)
    problems = refusal.value.problems
    assert [problem.field for problem in problems] == ["MODEL", "--tp"], "what else is wrong is said too"
    assert all(problem.remedy for problem in problems)


@pytest.mark.parametrize("value", [{1}, object(), b"1", endless(), {(1, 2): 3}], ids=lambda value: type(value).__name__)
def test_a_configuration_that_is_no_plain_data_is_a_problem_of_its_key(value: Any) -> None:
    verdict = hisparse_svc.validate("glm-5.2", hisparse_config={"top_k": value, "device_bufer_size": 4096})
    assert not verdict.valid
    fields = [problem.field for problem in verdict.problems]
    assert any(field.startswith("--hisparse-config.top_k") for field in fields), fields
    assert "--hisparse-config.device_bufer_size" in fields, "what else is wrong is said too"
