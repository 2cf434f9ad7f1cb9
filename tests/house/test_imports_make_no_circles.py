"""No file imports one that imports it, however far around: each can be read with what lies below it, and moved."""

import re
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

from tests.house.imports import imported

ROOT = Path(__file__).parents[2]

FOLDERS = ("python", "tests", "benches", "examples", "docs", "deploy", "proto")

SCRIPTS = ("benches", "examples", "docs/generate")
"""Folders whose files name each other without a package."""


def circle(root: Path) -> str:
    """Give a circle of imports as lines to print; empty where there is none.

    A package stands for its `__init__`, which is in a circle with what it gathers only where that imports from the
    package's own name.
    """
    files = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*.py"))]
    lines = {path: imports(root, path) for path in files}
    try:
        TopologicalSorter(lines).prepare()
    except CycleError as found:
        around = found.args[1][::-1]
        return "\n".join(
            f"{user.relative_to(root)}:{lines[user][used]} imports {used.relative_to(root)}"
            for user, used in pairwise(around)
        )
    return ""


def imports(root: Path, path: Path) -> dict[Path, int]:
    """Give the files of this repository that a file imports, each with the first line that does."""
    tops = [root / "python", root]
    if path.parent.relative_to(root).as_posix() in SCRIPTS:
        tops += [path.parent, root / "examples"]
    lines: dict[Path, int] = {}
    for name, line in sorted(imported(path), key=lambda each: each[1]):
        used = file_of(tops, name) or file_of(tops, name.rpartition(".")[0])
        if used not in (None, path):
            lines.setdefault(used, line)
    return lines


def file_of(tops: list[Path], module: str) -> Path | None:
    stem = module.replace(".", "/")
    files = [top / f"{stem}{ending}" for top in tops for ending in (".py", "/__init__.py", ".pyi")] if stem else []
    return next((path for path in files if path.is_file()), None)


def test_no_file_imports_one_that_imports_it() -> None:
    found = circle(ROOT)
    assert not found, f"these files import each other in a circle:\n{found}\nmove what they share to the lowest of them"


PLANTED = {
    "at the top": "from hisparse_svc.low import y",
    "in a function": "def f():\n    import hisparse_svc.low",
    "for types": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from hisparse_svc import low",
    "by way of a package": "from hisparse_svc import y",
}


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_a_circle_is_found_however_it_is_imported(tmp_path: Path, planted: str) -> None:
    package = tmp_path / "python" / "hisparse_svc"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from hisparse_svc.low import y\n")
    (package / "low.py").write_text("from hisparse_svc.middle import x\ny = x\n")
    (package / "middle.py").write_text("import hisparse_svc.high\nx = 1\n")
    (package / "high.py").write_text("import math\n")
    assert not circle(tmp_path)
    (package / "high.py").write_text(planted)
    for user, used in (("low", "middle"), ("middle", "high")):
        assert re.search(rf"{user}\.py:1 imports python/hisparse_svc/{used}\.py", circle(tmp_path)), circle(tmp_path)


def test_scripts_that_name_each_other_without_a_package_make_circles_too(tmp_path: Path) -> None:
    (tmp_path / "benches").mkdir()
    (tmp_path / "benches" / "one.py").write_text("import two\n")
    (tmp_path / "benches" / "two.py").write_text("from one import f\n")
    assert set(circle(tmp_path).splitlines()) == {
        "benches/one.py:1 imports benches/two.py",
        "benches/two.py:1 imports benches/one.py",
    }
