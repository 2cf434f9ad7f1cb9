"""The first pages a newcomer reads, walked: every command as it stands there, in order, in one shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import ROOT, blocks

if TYPE_CHECKING:
    from pathlib import Path

QUICKSTART = ROOT / "docs/quickstart.md"
README = ROOT / "README.md"
BY_CI = {"make test": "check"}
"""What cannot be run from within itself, and the target through which CI runs it."""


def shell(script: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a newcomer would: nothing of this program set, a runtime folder of its own."""
    programs = folder / "bin"
    programs.mkdir()
    for name, start in {"hisparse-svc": "-m hisparse_svc", "python": ""}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {start} "$@"\n')
        (programs / name).chmod(0o755)
    runtime = folder / "run"
    runtime.mkdir(mode=0o700)
    ours = ("HISPARSE_", "MAKE", "MFLAGS", "RUN_SECONDS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    # The page's ports are a newcomer's machine's; here another service may have them.
    kept |= {"HISPARSE_HTTP": "127.0.0.1:0", "XDG_RUNTIME_DIR": str(runtime), "NO_COLOR": "1"}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT,
        env={**kept, "PATH": f"{programs}:{kept['PATH']}", **more},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_quickstart_runs_from_its_first_command_to_its_last(tmp_path: Path) -> None:
    walked = [block for block in blocks(QUICKSTART) if block.language == "sh"]
    assert len(walked) >= 7
    assert all(block.walk for block in walked), "a block of commands that nobody runs"
    script = "".join(block.text for block in walked if block.walk == "plain")
    done = shell("trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n" + script, tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "limited by" in done.stdout
    assert "pages until the block ends" in done.stdout
    assert "NEVER_FITS" in done.stdout
    assert "200 requests" in done.stdout or "50 requests" in done.stdout


def test_the_quickstarts_build_is_what_made_this(tmp_path: Path) -> None:
    (build,) = (block.text for block in blocks(QUICKSTART) if block.walk == "build")
    if not (ROOT / ".venv/bin/.built").exists():
        pytest.skip("this environment was not made by make build")
    done = shell(build, tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d+\.\d+\.\d+", done.stdout)


def test_the_first_commands_of_the_readme_run(tmp_path: Path) -> None:
    first = blocks(README)[0].text
    commands = [line.split("#")[0].strip() for line in first.splitlines()]
    assert commands == ["make run", "make test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command, through in BY_CI.items():
        assert re.search(rf"^{through}:.* {command.removeprefix('make ')}\b", makefile, re.MULTILINE), command
        assert f"make {through}" in (ROOT / ".ci/run").read_text(encoding="utf-8")
    if not (ROOT / ".venv/bin/.built").exists():
        pytest.skip("this environment was not made by make build")
    done = shell("make run", tmp_path, RUN_SECONDS="12")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "Stopped." in done.stdout


def test_the_readmes_service_answers_the_commands_below_it(tmp_path: Path) -> None:
    (served,) = (block.text for block in blocks(README) if block.text.startswith("hisparse-svc serve"))
    done = shell(f"trap 'kill %1; wait' EXIT\n{served}", tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "host_pages" in done.stdout or "host pages" in done.stdout


def test_the_readmes_python_runs_as_it_stands(tmp_path: Path) -> None:
    shown = [block.text for block in blocks(README) if block.language == "python"]
    assert len(shown) >= 2
    for place, text in enumerate(shown):
        (tmp_path / str(place)).mkdir()
        done = shell(f"python - <<'PYTHON'\n{text}PYTHON\n", tmp_path / str(place))
        assert done.returncode == 0, f"{text}\n{done.stderr}"
