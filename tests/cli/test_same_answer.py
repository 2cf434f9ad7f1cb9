"""One implementation behind command line and Python: the same question gets the same document."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import hisparse_svc
import pytest

from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Run

QUESTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "ratio": {"ratio": 2.5, "hot_rows": 8192, "context": [8192, 131072]},
    "pool": {"host_pool": "160GiB", "kv_bytes": "40GiB", "tp": 8, "share_host": True},
    "gpu": {"gpu": "h200", "tp": 8, "ep": True, "mtp": 3, "kv_dtype": "fp8_e4m3", "weights": "80GiB"},
    "stage": {"stage": "0:39", "pp": 2},
    "off": {"hisparse": False, "context": [32768]},
    "sglang": {"engine": "sglang", "ratio": 4},
    "vllm": {"engine": "vllm", "host_pool": "384GiB", "kv_bytes": "24GiB", "context": [131072]},
}


def flags(question: dict[str, Any]) -> list[str]:
    words = []
    for name, value in question.items():
        flag = f"--{name.replace('_', '-')}"
        if name == "hisparse":
            words.append("--no-hisparse")
        elif value is True:
            words.append(flag)
        else:
            for item in value if isinstance(value, list) else [value]:
                words += [flag, str(item)]
    return words


@pytest.mark.parametrize("model", ["glm-5.2", "deepseek-v3.2"])
@pytest.mark.parametrize("name", QUESTIONS)
def test_plan_answers_the_same_both_ways(cli: Callable[..., Run], name: str, model: str) -> None:
    question = QUESTIONS[name]
    done = cli("plan", model, *flags(question), "--json")
    assert done.code == 0, done.err
    assert done.document == hisparse_svc.plan(model, **question).to_dict()


CASES = json.loads((ROOT / "tests/golden/plans.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['model']} {case['question']}")
def test_python_and_the_command_line_give_the_answer_that_rust_is_held_to(
    cli: Callable[..., Run], case: dict[str, Any]
) -> None:
    assert hisparse_svc.plan(case["model"], **case["question"]).to_dict() == case["plan"]
    assert cli("plan", case["model"], *flags(case["question"]), "--json").document == case["plan"]


def test_plan_refuses_the_same_both_ways(cli: Callable[..., Run]) -> None:
    question: dict[str, Any] = {"ratio": 0, "hot_rows": 100, "tp": 0}
    with pytest.raises(hisparse_svc.InvalidInput) as refusal:
        hisparse_svc.plan("glm-5.2", **question)
    told = cli("plan", "glm-5.2", *flags(question), "--json").document["problems"]
    assert told == [asdict(problem) for problem in refusal.value.problems]


def test_validate_answers_the_same_both_ways(cli: Callable[..., Run]) -> None:
    text = '{"topk": 1, "device_buffer_size": 4100}'
    done = cli("validate", "glm-5.2", "--hisparse-config", text, "--sm", "100", "--json")
    verdict = hisparse_svc.validate("glm-5.2", hisparse_config=json.loads(text), sm=100)
    assert done.document == verdict.to_dict()


def test_a_plans_attributes_are_its_document() -> None:
    plan = hisparse_svc.plan("glm-5.2", context=[131072], mtp=1)
    document = plan.to_dict()
    assert json.loads(plan.to_json()) == document
    for name, value in document.items():
        if not isinstance(value, dict | list):
            assert getattr(plan, name) == value, name
    for name in ("model", "layout", "device_bytes"):
        for inner, value in document[name].items():
            assert getattr(getattr(plan, name), inner) == value, (name, inner)
    assert [row.hisparse for row in plan.concurrency] == [row["hisparse"] for row in document["concurrency"]]
