"""What the engine's pages of the documentation show: names, signatures and first programs are those of the code."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from tests.conftest import ROOT, environment
from tests.docs import pages

pytest.importorskip("torch", reason="torch is not installed: make setup-engine")
from hisparse_svc import engine, kernels

PAGES = ["decode", "indexer", "overlap", "swap-in", "host-pool"]
WITH_A_PROGRAM = ["decoding", *PAGES]


def blocks(page: str, language: str) -> list[str]:
    """Give the code of a page that is marked as of one language."""
    return [block.text for block in pages.blocks(ROOT / "docs" / f"{page}.md") if block.language == language]


def signature(name: str) -> str:
    """Give a callable's own signature, types left out."""
    found: object = next(part for part in (engine, kernels) if hasattr(part, name.split(".", maxsplit=1)[0]))
    for part in name.split("."):
        found = getattr(found, part)
    assert callable(found)
    own = inspect.signature(found)
    kept = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in own.parameters.values()
        if parameter.name != "self"
    ]
    return f"{name}{own.replace(parameters=kept, return_annotation=inspect.Signature.empty)}"


@pytest.mark.parametrize("page", PAGES)
def test_signatures_are_those_of_the_code(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    section = text.split("\n## Calls\n")[1].split("```")[1]
    lines = section.strip().splitlines()
    assert lines
    assert lines == [signature(line.split("(")[0]) for line in lines]


@pytest.mark.parametrize("page", WITH_A_PROGRAM)
def test_a_first_program_runs(page: str) -> None:
    program = blocks(page, "python")[0]
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_readme_names_every_page_for_engines() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8").split("## Documentation")[1]
    assert [page for page in WITH_A_PROGRAM if f"(docs/{page}.md)" not in readme] == []


def test_every_name_that_is_promised_is_there() -> None:
    for part in (engine, kernels):
        assert [name for name in part.__all__ if not hasattr(part, name)] == []
    assert set(engine._HOMES) == set(engine.__all__)
