"""The example of a whole session runs, and swaps in what it says."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.conftest import ROOT, environment


def test_the_example_decodes_retracts_resumes_and_gives_all_pages_back() -> None:
    example = ROOT / "examples" / "decode_with_session.py"
    done = subprocess.run(
        [sys.executable, str(example)], env=environment(), capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    steps = [
        [int(number) for number in re.findall(r"\d+", line)] for line in done.stdout.splitlines() if "steps" in line
    ]
    assert [count for count, *_ in steps] == [25, 5, 20, 5]
    for _, picked, first, average in steps:
        assert 0 < average < picked / 4, done.stdout
        assert 0 < first <= picked, done.stdout
    assert steps[0][2] > steps[0][1] * 3 / 4, "nothing is hot behind a prefill"
    assert steps[2][2] < steps[2][1] / 4, "what was hot before a retraction is hot behind it"
    assert re.search(r"left with 200 tokens, \d+ of them durable.*\nleft with 270 tokens", done.stdout), done.stdout
    free, total = re.findall(r"(\d+) of (\d+) pages free or being zeroed", done.stdout)[0]
    assert free == total
