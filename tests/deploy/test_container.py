"""The Dockerfile: linted, pinned, no root, no torch in the service, and started with settings that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hisparse_svc import config

from tests.conftest import ROOT

DOCKERFILE = ROOT / "deploy/container/Dockerfile"


def instructions() -> list[tuple[str, str, str]]:
    """Stage, instruction and arguments, in their order, with continued lines joined and comments left out."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found, stage = [], ""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            if word == "FROM":
                stage = rest.rpartition(" AS ")[2]
            found.append((stage, word, rest))
    return found


def stages(last: str) -> list[str]:
    """The stages that an image is made of: itself, and what it is from; not what it copies from."""
    from_ = {stage: rest.split(" ")[0] for stage, word, rest in instructions() if word == "FROM"}
    made = [last]
    while from_[made[-1]] in from_:
        made.append(from_[made[-1]])
    return made


def test_the_linter_finds_nothing() -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}") or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("no hadolint: run make setup")
    done = subprocess.run([hadolint, str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_bases_are_named_by_version_and_can_be_given_by_digest() -> None:
    defaults = dict(rest.split("=", 1) for _, word, rest in instructions() if word == "ARG")
    bases = [rest.split(" ")[0] for _, word, rest in instructions() if word == "FROM"]
    outside = [base for base in bases if base.startswith("${")]
    assert outside == ["${RUST_IMAGE}", "${BASE_IMAGE}"]
    for name in outside:
        assert re.fullmatch(r"[a-z]+:\d[\w.-]*(@sha256:[0-9a-f]{64})?", defaults[name.strip("${}")]), defaults


def test_the_service_runs_as_a_fixed_user_and_is_what_is_built_by_default() -> None:
    assert instructions()[-1][0] == "service"
    users = [rest for stage, word, rest in instructions() if word == "USER" and stage in stages("service")]
    assert users == ["10001:10001"], "a number, so that runAsNonRoot can tell"


def test_no_torch_is_in_the_service() -> None:
    for stage, word, rest in instructions():
        if stage in ("service", "base", "build"):
            assert "[engine]" not in rest, f"{stage}: {word} {rest}"
    copies = [rest for stage, word, rest in instructions() if word == "COPY" and stage == "service"]
    assert copies == ["--from=build /opt/hisparse /opt/hisparse"]


def test_it_starts_with_flags_that_serve_has() -> None:
    (command,) = [json.loads(rest) for _, word, rest in instructions() if word == "CMD" and rest.startswith('["serve"')]
    flags = dict(zip(command[1::2], command[2::2], strict=True))
    chosen = config.load({flag.removeprefix("--").replace("-", "_"): value for flag, value in flags.items()}, {})
    assert (str(chosen.socket), chosen.http, chosen.log) == ("/run/hisparse/hisparse.sock", "0.0.0.0:7412", "json")


def test_no_setting_is_a_variable_of_the_image() -> None:
    given = [
        name for _, word, rest in instructions() if word == "ENV" for name in re.findall(r"HISPARSE_\w+(?==)", rest)
    ]
    assert set(given) <= {"HISPARSE_TARGET", "HISPARSE_CACHE_DIR"}, "it would beat the file that an operator mounts"


def test_what_is_copied_is_what_the_builder_may_see() -> None:
    ignore = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    copied = {
        path
        for stage, word, rest in instructions()
        if word == "COPY" and stage == "build"
        for path in rest.split(" ")[:-1]
    }
    assert copied == allowed
    assert all((ROOT / path).exists() for path in copied)
