"""What runs at a commit is what CI runs: hooks call the targets that `make check` is made of."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def prerequisites(target: str) -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    found = re.search(rf"^{target}:([^#\n]*)", text, re.MULTILINE)
    assert found, target
    return set(found[1].split())


def test_hooks_run_every_part_of_make_check() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"entry: make (\S+)", hooks)) == prerequisites("check")


def test_ci_runs_make_check() -> None:
    assert "\nmake check\n" in (ROOT / ".ci/run").read_text(encoding="utf-8")


def test_every_target_with_a_help_line_is_phony() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    helped = set(re.findall(r"^([a-z-]+):.*##", text, re.MULTILINE))
    assert helped <= prerequisites(r"\.PHONY")
