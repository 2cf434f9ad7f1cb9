"""A state directory: a start that is refused leaves nothing there, and two services never share one."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.serve.conftest import Served

VOLUME = Path("/dev/shm")  # noqa: S108 - where a state directory must be: in memory


VOLUMES = "hisparse-test-"


@pytest.fixture
def volume() -> Iterator[Path]:
    """A folder in memory."""
    if not os.access(VOLUME, os.W_OK):
        pytest.skip(f"no writable {VOLUME} here")
    with tempfile.TemporaryDirectory(prefix=VOLUMES, dir=VOLUME) as made:
        yield Path(made)


@pytest.fixture
def taken() -> Iterator[str]:
    """A port that somebody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("why", ["a pool too large", "a port in use"])
@pytest.mark.parametrize("there", [False, True], ids=["made for it", "there before"])
def test_a_refused_start_leaves_nothing_that_was_not_there(
    why: str, there: bool, volume: Path, taken: str, tmp_path: Path
) -> None:
    state = volume / "state"
    if there:
        state.mkdir(mode=0o700)
    flags = {
        "a pool too large": ["--host-pool", "1GiB", "--assume-memory", "512MiB", "--http", "off"],
        "a port in use": ["--host-pool", "256MiB", "--http", taken],
    }
    told = run("serve", "--socket", str(tmp_path / "h.sock"), "--state-dir", str(state), *flags[why])
    assert told.code == 2, told.err
    assert state.exists() is there
    assert sorted(volume.rglob("*")) == ([state] if there else [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("backing", ["none", "memory"])
def test_two_services_never_share_a_state_directory(
    backing: str, volume: Path, serve: Callable[..., Served], tmp_path: Path
) -> None:
    state = volume / "state"
    flags = ("--backing", backing, "--host-pool", "256MiB", "--state-dir", str(state))
    first = serve(*flags)
    told = run("serve", *flags, "--http", "off", "--socket", str(tmp_path / "second.sock"))
    assert told.code == 2, "the first still has it"
    assert "another service uses" in told.err
    before = sorted(state.iterdir())
    assert first.end() == 0
    assert sorted(state.iterdir()) == before, "what a service that began has put there stays"
