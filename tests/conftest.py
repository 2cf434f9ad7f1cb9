"""What tests share: the program as a user runs it, sample configurations, devices to compute on, and the machine."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "rust/hisparse-core/tests/data/model_configs"


@dataclass(frozen=True)
class Run:
    """One finished command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)

    @property
    def errors(self) -> list[str]:
        """The errors on stderr, which has nothing else."""
        lines = self.err.splitlines()
        assert all(line.startswith("error: ") for line in lines), self.err
        return [line.removeprefix("error: ") for line in lines]


def environment(**more: str) -> dict[str, str]:
    """This process's variables without the tester's settings of ours, and the size of the tester's terminal."""
    theirs = {"COLUMNS", "LINES"}
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("HISPARSE_") and name not in theirs
    }
    return {**kept, "NO_COLOR": "1", **more}


def run(*arguments: str, env: dict[str, str] | None = None) -> Run:
    """Run the program in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "hisparse_svc", *arguments],
        env=environment(**(env or {})),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr or "--debug" in arguments, done.stderr
    return Run(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def cli() -> Callable[..., Run]:
    """The command line."""
    return run


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., str]:
    """Makes a config.json out of a sample, with changes; `None` removes a field, text replaces the whole file."""

    def make(sample: str = "glm_5_2", text: str | None = None, **changes: Any) -> str:
        path = tmp_path / "config.json"
        if text is None:
            fields = json.loads((SAMPLES / sample / "config.json").read_text(encoding="utf-8"))
            fields.update(changes)
            text = json.dumps({key: value for key, value in fields.items() if value is not None})
        path.write_text(text, encoding="utf-8")
        return str(path)

    return make


@contextmanager
def turn(door: Path, room: Path, *, alone: bool) -> Iterator[None]:
    """Hold a place on this machine, beside others or alone; the kernel gives it back with the process.

    ::

        door ──► one at a time: take a place in the room, and leave the door
        room ──► shared; who must be alone waits in the door until it is empty, and nobody comes in before
    """
    with contextlib.ExitStack() as held:
        at_door, in_room = (os.open(path, os.O_RDONLY) for path in (door, room))
        for lock in (at_door, in_room):
            held.callback(os.close, lock)
        fcntl.flock(at_door, fcntl.LOCK_EX)
        fcntl.flock(in_room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(at_door, fcntl.LOCK_UN)
        held.callback(fcntl.flock, in_room, fcntl.LOCK_UN)  # closing is not enough: a forked child may have it too
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test and its fixtures while no other process runs one that may not be beside it."""
    here = Path(__file__)
    with turn(here, here.parent, alone=item.get_closest_marker("alone") is not None):
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a CUDA device where there is none."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not torch_sees_a_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))


def torch_sees_a_gpu() -> bool:
    try:
        import torch  # noqa: PLC0415 - most tests do without, and it takes seconds
    except ImportError:
        return False
    return torch.cuda.is_available()


@pytest.fixture(params=["cpu", *(pytest.param(name, marks=pytest.mark.gpu) for name in ("cuda:0", "cuda:1"))])
def device(request: pytest.FixtureRequest) -> str:
    """Where to compute, as torch names it; the second GPU is not the current one."""
    if request.param == "cuda:1":
        import torch  # noqa: PLC0415 - it is loaded where there is a GPU

        if torch.cuda.device_count() < 2:
            pytest.skip("fewer than two CUDA devices")
    return str(request.param)


def shared(folder: str) -> Path:
    """A folder of the shared material, or a skip that says why."""
    where = Path(os.environ.get("HISPARSE_SHARED", ROOT.parent / "shared")) / folder
    if not where.is_dir():
        pytest.skip(f"no {folder}: set HISPARSE_SHARED to the folder that holds it")
    return where
