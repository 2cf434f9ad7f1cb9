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


def test_ci_runs_both_halves_of_the_checks() -> None:
    commands = re.findall(r"^make (.*)$", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.MULTILINE)
    assert commands == ["setup-deploy", "check", "check-engine"]


def test_what_skips_without_torch_is_run_with_it() -> None:
    listed = re.search(r"^ENGINE_TESTS := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed
    places = [ROOT / place for place in listed[1].split()]
    need = [path for path in (ROOT / "tests").rglob("*.py") if 'importorskip("torch"' in path.read_text("utf-8")]
    assert len(need) > 5
    for path in need:
        if path != Path(__file__):
            assert any(path.is_relative_to(place) for place in places), f"{path} is not among ENGINE_TESTS"


def test_every_target_with_a_help_line_is_phony() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    helped = set(re.findall(r"^([a-z-]+):.*##", text, re.MULTILINE))
    assert helped <= prerequisites(r"\.PHONY")
