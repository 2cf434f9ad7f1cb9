"""Names of the tests that there are, for pages that say which test holds what."""

from __future__ import annotations

import re
from functools import cache

from tests.docs.pages import ROOT

RUST_TEST = re.compile(r"#\[(?:tokio::)?test[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*(?:async )?fn (\w+)")
RUST_PROPERTY = re.compile(r"^\s*fn (\w+)\((?:[^)]* in )", re.MULTILINE)
PYTHON_TEST = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)


@cache
def existing_tests() -> frozenset[str]:
    """Every test of the Rust crates and of the Python suite."""
    found: set[str] = set()
    for path in (ROOT / "rust").glob("*/**/*.rs"):
        text = path.read_text(encoding="utf-8")
        found |= {*RUST_TEST.findall(text), *RUST_PROPERTY.findall(text)}
    for path in (ROOT / "tests").glob("**/*.py"):
        found |= set(PYTHON_TEST.findall(path.read_text(encoding="utf-8")))
    return frozenset(found)
