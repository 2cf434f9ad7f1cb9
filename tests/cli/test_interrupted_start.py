"""Ctrl-C while the program is imported, and when it is done: the exit code and the word of any other moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

PROGRAM = """
import atexit, os, runpy, signal, sys

moment, *sys.argv[1:] = sys.argv[1:]

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == moment:
            interrupt()

sys.meta_path.insert(0, Interrupts())
if moment == "the exit":
    atexit.register(interrupt)
runpy.run_module("hisparse_svc", run_name="__main__", alter_sys=True)
"""


def interrupted_at(moment: str, *command: str, ignoring: bool = False) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, moment, *command],
        env={**os.environ, "NO_COLOR": "1"},
        preexec_fn=(lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if ignoring else None,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("moment", "command"),
    [
        ("hisparse_svc.cli.app", "models"),
        ("click", "models"),
        ("hisparse_svc._core", "models"),
        ("hisparse_svc.cli.models", "models"),
        ("rich.console", "models"),
        ("grpc", "capacity"),
        ("the exit", "models"),
    ],
)
def test_ctrl_c_at_any_import_ends_as_it_does_later(moment: str, command: str) -> None:
    assert interrupted_at(moment, command) == (130, "error: interrupted\n")


@pytest.mark.parametrize("moment", ["click", "rich.console", "the exit"])
def test_a_background_job_that_ignores_ctrl_c_goes_on_ignoring_it(moment: str) -> None:
    assert interrupted_at(moment, "models", ignoring=True) == (0, "")
