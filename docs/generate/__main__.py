"""Write the parts of the documentation that the program itself knows; `--check` fails where they have drifted.

::

    <!-- run: COMMAND -->          in README.md and docs/: the block below becomes the command's real output
    docs/cli.md                    flags of every command, from the commands
    docs/budgets.md                layouts, budgets, calculator, backends, presets, limits, from the core
    docs/api/                      the gRPC interface from proto/, the Python names from their docstrings
    tests/golden/plans.json        answers that Rust, Python and the command line must all give
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import budget_tables
import command_reference
import grpc_reference
import hisparse_svc
import python_reference

ROOT = Path(__file__).parents[2]
ANSWERS = ROOT / "tests" / "golden" / "plans.json"
MARK = re.compile(r"(<!-- run: (?P<command>.+?) -->\n)(\n```console\n.*?\n```\n)?", re.DOTALL)
WIDTH = "110"


def output_of(command: str) -> str:
    """Run a command as a user would, errors after what it prints."""
    words = shlex.split(command)
    assert words[0] in ("hisparse-svc", "python"), command
    start = ["-m", "hisparse_svc"] if words[0] == "hisparse-svc" else []
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HISPARSE_")}
    run = subprocess.run(
        [sys.executable, *start, *words[1:]],
        cwd=ROOT,
        env={**kept, "COLUMNS": WIDTH, "NO_COLOR": "1", "TERM": "dumb"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if run.returncode not in (0, 2):
        raise SystemExit(f"{command}: exit code {run.returncode}\n{run.stdout}")
    return "\n".join(line.rstrip() for line in run.stdout.strip("\n").splitlines())


def with_outputs(text: str) -> str:
    """Fill the block below each mark with what its command prints."""

    def fill(match: re.Match[str]) -> str:
        command = match["command"]
        return f"{match[1]}\n```console\n$ {command}\n{output_of(command)}\n```\n"

    return MARK.sub(fill, text)


def with_answers(text: str) -> str:
    """Answer every question of the file that Rust, Python and the command line are held to."""
    cases = json.loads(text)
    for case in cases:
        case["plan"] = hisparse_svc.planner.plan.plan_from(case["model"], case["question"]).to_dict()
    return json.dumps(cases, indent=1, ensure_ascii=False) + "\n"


def documents() -> dict[Path, str]:
    """Give every generated text by its file."""
    texts = {
        ROOT / "docs" / "cli.md": command_reference.text(),
        ROOT / "docs" / "budgets.md": budget_tables.text(ROOT),
        ROOT / "docs" / "api" / "grpc.md": grpc_reference.text(ROOT),
        ROOT / "docs" / "api" / "python.md": python_reference.text(ROOT),
        ANSWERS: with_answers(ANSWERS.read_text(encoding="utf-8")),
    }
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if path not in texts and MARK.search(path.read_text(encoding="utf-8")):
            texts[path] = with_outputs(path.read_text(encoding="utf-8"))
    return texts


def main() -> None:
    """Write the files, or check them."""
    check = "--check" in sys.argv[1:]
    drifted = []
    for path, text in documents().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            drifted.append(path.relative_to(ROOT))
            if not check:
                path.write_text(text, encoding="utf-8")
    names = ", ".join(map(str, drifted)) or "nothing"
    if check and drifted:
        raise SystemExit(f"error: {names} differ from what the program says; run `make docs` and commit the result")
    sys.stdout.write(f"docs: {names} {'differs' if check else 'changed'}\n")


if __name__ == "__main__":
    main()
