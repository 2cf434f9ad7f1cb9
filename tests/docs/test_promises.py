"""`SPECIFICATION.md` and `CONTRACT.md` name code and tests that exist; what no test holds is a gap that says so."""

from __future__ import annotations

import re

from tests.docs.named_tests import existing_tests
from tests.docs.pages import ROOT

PROMISE = re.compile(r"^\| S(?P<number>\d+) \| (?P<text>.+?) \| (?P<held>.+) \|$", re.MULTILINE)
INVARIANT = re.compile(
    r"^\| (?P<text>[^|]+?) \| `(?P<path>[\w/.-]+)`(?: `(?P<name>\w+)`)? \| (?P<held>.+) \|$", re.MULTILINE
)


def named(held: str) -> list[str]:
    return re.findall(r"`(\w+)`", held)


def test_every_promise_has_its_number_and_a_test_that_exists_or_is_a_gap() -> None:
    promises = list(PROMISE.finditer((ROOT / "docs/SPECIFICATION.md").read_text(encoding="utf-8")))
    assert [int(each["number"]) for each in promises] == list(range(1, len(promises) + 1))
    for each in promises:
        gap = re.match(r"\*\*gap\*\*: .{20,}", each["held"])
        assert gap or named(each["held"]), f"S{each['number']} is held by nothing"
        assert set(named(each["held"])) <= existing_tests(), f"S{each['number']}: {each['held']}"


def test_every_invariant_has_its_code_and_a_test_that_exist() -> None:
    text = (ROOT / "docs/CONTRACT.md").read_text(encoding="utf-8")
    invariants = list(INVARIANT.finditer(text))
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| invariant")]
    assert len(invariants) == len(rows)
    for each in invariants:
        path = ROOT / each["path"]
        assert path.is_file(), each["path"]
        if each["name"]:
            assert re.search(rf"\b{each['name']}\b", path.read_text(encoding="utf-8")), each[0]
        assert named(each["held"]), each[0]
        assert set(named(each["held"])) <= existing_tests(), each[0]
