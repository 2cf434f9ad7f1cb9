"""Folders of embedded nodes: none is left behind, whichever way the process goes, and none of the living is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conftest import environment

if TYPE_CHECKING:
    from pathlib import Path

EMBED = """
import signal, sys
from hisparse_svc import Node
node = Node.embedded(backing="none", host_pool="1GiB")
print(node.target, flush=True)
sys.stdin.readline()
node.client.get_capacity()
node.stop()
"""


def embed(tmp: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", EMBED],
        env=environment(TMPDIR=str(tmp)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith(f"unix:{tmp}/hisparse-")
    return process


@pytest.fixture
def tmp(tmp_path: Path) -> Path:
    folder = tmp_path / "t"
    folder.mkdir()
    return folder


def test_an_embedded_node_that_is_terminated_leaves_no_folder(tmp: Path) -> None:
    process = embed(tmp)
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGTERM
    assert list(tmp.iterdir()) == []


def test_what_a_killed_one_left_is_swept_by_the_next_and_the_living_are_let_be(tmp: Path) -> None:
    living, killed = embed(tmp), embed(tmp)
    assert len(list(tmp.iterdir())) == 2
    killed.kill()
    killed.communicate(timeout=20)
    (other := tmp / "hisparse-of-another-program").mkdir()
    following = embed(tmp)
    assert len(list(tmp.iterdir())) == 3, "the killed one's folder is gone, the others are here"
    for process in (living, following):
        process.communicate("\n", timeout=20)
        assert process.returncode == 0
    assert list(tmp.iterdir()) == [other]


def test_a_programs_own_handler_of_sigterm_is_left_alone(tmp: Path) -> None:
    mine = "import signal; signal.signal(signal.SIGTERM, lambda *_: print('mine', flush=True))\n"
    process = subprocess.Popen(
        [sys.executable, "-c", mine + EMBED],
        env=environment(TMPDIR=str(tmp)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    os.kill(process.pid, signal.SIGTERM)
    assert process.stdout.readline() == "mine\n"
    process.communicate("\n", timeout=20)
    assert process.returncode == 0
