"""Each defence of the threat model is held by a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.named_tests import existing_tests

ROOT = Path(__file__).resolve().parents[2]


def test_every_test_that_the_threat_model_names_exists() -> None:
    text = (ROOT / "docs/THREAT_MODEL.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and line.count("|") == 4]
    named = {name for row in rows for name in re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+){3,})`", row.rsplit("|", 2)[1])}
    assert len(named) > 30, named
    assert not named - existing_tests()
