"""What a shell can put in the place of a file, a path or stdout: an answer or one error, no wait and no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import SAMPLES, environment

PROGRAM = f"'{sys.executable}' -m hisparse_svc"
PLAIN = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
"""A locale whose encoding is ASCII."""


def shell(command: str, *arguments: bytes | str, env: dict[str, str] | None = None) -> tuple[int, bytes, list[bytes]]:
    """Run a line of bash; give the program's exit code, stdout, and the lines of stderr."""
    done = subprocess.run(
        ["bash", "-c", command.replace("PROGRAM", PROGRAM), "bash", *arguments],
        env=environment(**(env or {})),
        capture_output=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr.splitlines()


# --- stdout ----------------------------------------------------------------------------------------------------------

COMMANDS = ["models", "models --json", "plan glm-5.2", "plan glm-5.2 --json", "validate glm-5.2 --json", "--help"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_is_gone_ends_it_with_the_status_of_a_closed_pipe(command: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "hisparse_svc", *command.split()],
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_stdout_that_is_closed_changes_nothing(command: str) -> None:
    assert shell(f"PROGRAM {command} >&-") == (0, b"", [])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this machine")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_is_one_error(command: str) -> None:
    code, _, told = shell(f"PROGRAM {command} >/dev/full")
    assert code == 2, told
    assert len(told) == 1, told
    assert told[0].startswith(b"error: the output cannot be written: "), told


# --- paths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", [{}, PLAIN], ids=["utf8", "ascii"])
@pytest.mark.parametrize("name", [b"bad\xff", "ü".encode()], ids=ascii)
@pytest.mark.parametrize("flags", ["", "--json"])
def test_a_path_that_is_no_text_is_read_or_refused(
    tmp_path: Path, env: dict[str, str], name: bytes, flags: str
) -> None:
    folder = os.fsencode(tmp_path) + b"/" + name
    code, out, told = shell(f'PROGRAM plan "$1" {flags}', folder, env=env)
    assert code == 2, told
    assert len(told) == 1, told
    assert told[0].startswith(b"error: MODEL is "), told
    assert b"; " in told[0], told
    if flags:
        assert json.loads(out)["problems"][0]["field"] == "MODEL"

    Path(os.fsdecode(folder)).mkdir()
    text = (SAMPLES / "glm_5_2/config.json").read_bytes()
    Path(os.fsdecode(folder + b"/config.json")).write_bytes(text)
    code, out, told = shell(f'PROGRAM plan "$1" {flags}', folder, env=env)
    assert (code, told) == (0, [])
    if flags:
        assert json.loads(out)["model"]["name"] == ("ü" if name == "ü".encode() else r"bad\xff")


def test_a_flag_that_is_no_text_is_refused() -> None:
    code, _, told = shell('PROGRAM doctor --assume-memory "$1"', b"\xff")
    assert (code, len(told)) == (2, 1), told


# --- files -----------------------------------------------------------------------------------------------------------

PLACES = {"MODEL": "plan", "TRACE": "replay", "--config": "serve --config"}


@pytest.mark.parametrize("field", PLACES)
@pytest.mark.parametrize("kind", ["pipe", "device", "socket_of_the_shell"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, field: str, kind: str) -> None:
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    # Its stderr is closed: else this test would wait until it ends.
    word = {"pipe": f"'{pipe}'", "device": "/dev/zero", "socket_of_the_shell": "<(sleep 5 2>&-)"}[kind]
    code, _, told = shell(f"PROGRAM {PLACES[field]} {word}")
    assert code == 2, told
    assert len(told) == 1, told
    assert told[0].startswith(f"error: {field} is ".encode()), told
    assert b"is not a regular file" in told[0], told


@pytest.mark.parametrize("field", PLACES)
def test_a_file_above_its_bound_is_not_read(tmp_path: Path, field: str) -> None:
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(1 << 40)
    code, _, told = shell(f"PROGRAM {PLACES[field]} '{large}'")
    assert (code, len(told)) == (2, 1), told
    assert b"holds 1099511627776 bytes: must be at most" in told[0], told


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    text = (SAMPLES / "glm_5_2/config.json").read_bytes()
    (tmp_path / "config.json").write_bytes(b"\xef\xbb\xbf" + text)
    assert shell(f"PROGRAM plan '{tmp_path}' --json")[0] == 0
