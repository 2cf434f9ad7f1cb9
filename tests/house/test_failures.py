"""`docs/failures.md` names a test for each failure, and the tests exist."""

from __future__ import annotations

import re
from pathlib import Path

from hisparse_svc._proto import admin_pb2, admission_pb2, budget_pb2, capacity_pb2, engine_pb2, types_pb2

from tests.docs.named_tests import existing_tests

ROOT = Path(__file__).parents[2]
FAILURES = 44


def rows() -> list[tuple[int, str, str]]:
    lines = (ROOT / "docs/failures.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if re.match(r"\| \d+ \|", line)]
    return [(int(number), how, held) for number, _, how, held in cells]


def test_every_failure_has_a_row_and_a_test_or_a_reason() -> None:
    assert [number for number, _, _ in rows()] == list(range(1, FAILURES + 1))
    reasons = (ROOT / "docs/NON_GOALS.md").read_text()
    for number, how, held in rows():
        cited = re.findall(r'not ours: "([^"]+)"', how)
        assert held or cited, f"failure {number} is held by nothing"
        assert all(f"**{reason}.**" in reasons for reason in cited), (
            f"failure {number}: {cited} is no line of NON_GOALS.md"
        )


def test_every_test_that_a_failure_names_exists() -> None:
    exist = existing_tests()
    named = {name: number for number, _, held in rows() for name in re.findall(r"`(\w+)`", held)}
    assert {name: number for name, number in named.items() if name not in exist} == {}


def test_no_message_holds_what_a_prompt_says() -> None:
    files = (admin_pb2, admission_pb2, budget_pb2, capacity_pb2, engine_pb2, types_pb2)
    fields = [
        field
        for file in files
        for message in file.DESCRIPTOR.message_types_by_name.values()
        for field in message.fields
    ]
    assert len(fields) > 100
    for field in fields:
        words = field.name.split("_")
        if "token" in words or "tokens" in words or "prompt" in words:
            texts = (field.CPPTYPE_STRING, field.CPPTYPE_MESSAGE)
            counts = field.cpp_type not in texts and not field.is_repeated
            opaque = field.name in ("resume_token", "page_token", "next_page_token", "token")
            assert counts or opaque, f"{field.full_name} may hold more than a count"
        assert not {"text", "texts", "ids"} & set(words), field.full_name
