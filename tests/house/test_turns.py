"""Tests run beside each other, and one that changes the machine alone."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from tests.conftest import turn


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def test_who_is_alone_waits_until_all_others_are_done_and_nobody_passes_him(
    pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    door, room = tmp_path / "door", tmp_path / "room"
    door.touch()
    room.touch()
    came: list[str] = []
    done = {name: threading.Event() for name in ("first", "second")}

    def run(name: str, *, alone: bool = False) -> None:
        with turn(door, room, alone=alone):
            came.append(name)
            if name in done:
                assert done[name].wait(20)
            came.append(f"{name} went")

    both = [pool.submit(run, name) for name in done]
    while len(came) < 2:  # the two are beside each other
        assert not wait(both, 0.01).done
    alone = pool.submit(run, "alone", alone=True)
    assert not wait([alone], 0.2).done
    late = pool.submit(run, "late")
    done["first"].set()
    assert not wait([alone, late], 0.2).done
    done["second"].set()
    assert not wait([*both, alone, late], 20).not_done
    order = [name for name in came if name.startswith(("alone", "late"))]
    assert order == ["alone", "alone went", "late", "late went"]
    assert came.index("alone") > max(came.index("first went"), came.index("second went"))
