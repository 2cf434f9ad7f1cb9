"""Machines that have too little: each refusal names the limit and how to raise it, and leaves everything as it was."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import hisparse_svc
import pytest
from hisparse_svc import Client, InvalidInput
from hisparse_svc.engine import HostPool

from tests.conftest import environment
from tests.serve.conftest import start

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
GROUPS = Path("/sys/fs/cgroup/memory")
HUGE_PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
SERVE = (sys.executable, "-m", "hisparse_svc", "serve", "--http", "off")

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can make this limit")


class Group:
    """A memory control group of version 1 with a limit."""

    def __init__(self, path: Path, limit: int) -> None:
        self.path = path
        (path / "memory.limit_in_bytes").write_text(str(limit))

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        enter = f'echo $$ > {self.path}/cgroup.procs && exec "$@"'
        return subprocess.run(
            ["/bin/sh", "-c", enter, "sh", *command],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @property
    def used(self) -> int:
        return int((self.path / "memory.usage_in_bytes").read_text())


@pytest.fixture
def group() -> Iterator[Group]:
    """A group of 400 MiB."""
    path = GROUPS / f"hisparse-test-{os.getpid()}"
    try:
        path.mkdir()
    except OSError as reason:
        pytest.skip(f"no memory control group of version 1 can be made here: {reason}")
    yield Group(path, 400 * MIB)
    for _ in range(100):  # the kernel takes a moment to forget its last process
        with contextlib.suppress(OSError):
            path.rmdir()
            return
        time.sleep(0.05)
    pytest.fail(f"{path} is still in use: a process is left behind")


def test_a_small_control_group_is_named_by_its_file_and_auto_keeps_within_it(group: Group, tmp_path: Path) -> None:
    told = group.run(*SERVE, "--socket", str(tmp_path / "h.sock"), "--host-pool", "1GiB")
    assert told.returncode == 2, told.stderr
    assert "its control group has " in told.stderr
    assert f" left ({group.path}/memory.limit_in_bytes); ask for " in told.stderr
    assert "resources.limits.memory" in told.stderr
    assert list(tmp_path.iterdir()) == []
    auto = """
        from hisparse_svc import Node
        with Node.embedded(host_pool="auto") as node:
            print(node.client.server_info().host_bytes, node.client.get_capacity().pool("host_pages").free)
    """
    (group.path / "memory.limit_in_bytes").write_text(str(800 * MIB))
    told = group.run(sys.executable, "-c", textwrap.dedent(auto))
    assert told.returncode == 0, told.stderr
    bytes_taken, pages = map(int, told.stdout.split())
    assert pages > 0
    assert bytes_taken < 700 * MIB


PARTLY = """
    import sys
    from pathlib import Path
    from hisparse_svc import InvalidInput, Node

    used = lambda: int(Path(sys.argv[1], "memory.usage_in_bytes").read_text())
    mapped = lambda: Path("/proc/self/maps").read_text().count("hisparse-segment")
    before = used()
    try:
        Node.embedded(host_pool="1GiB", assume_memory="8GiB")
    except InvalidInput as refusal:
        print(refusal)
    else:
        sys.exit("it fitted")
    assert mapped() == 0, "the half of it is unmapped"
    assert used() - before < 16 << 20, f"{used() - before} bytes are still charged"
    with Node.embedded(host_pool="256MiB", assume_memory="8GiB") as node:
        assert node.client.get_capacity().pool("host_pages").free == 76
        assert mapped() == 1
    print("alive")
"""


def test_memory_that_runs_out_half_way_is_given_back_and_the_process_lives(group: Group, tmp_path: Path) -> None:
    (group.path / "memory.oom_control").write_text("1")  # the kernel says no instead of killing
    told = group.run(sys.executable, "-c", textwrap.dedent(PARTLY), str(group.path))
    assert told.returncode == 0, told.stderr
    refusal, alive = told.stdout.splitlines()
    assert refusal.startswith("--host-pool is 1 GiB: cannot populate a segment")
    assert "memory limit" in refusal
    assert alive == "alive"
    flags = ("--socket", str(tmp_path / "h.sock"), "--host-pool", "1GiB", "--assume-memory", "8GiB")
    served = group.run(*SERVE, *flags)
    assert served.returncode == 2
    assert "cannot populate" in served.stderr
    assert {path.suffix for path in tmp_path.iterdir()} <= {".epoch", ".journal"}, "what the next start goes by"
    assert group.used < 32 * MIB


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 400 MiB of our own, as an emptyDir in memory is."""
    folder = tmp_path / "volume"
    folder.mkdir(mode=0o700)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400M,mode=0700", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_volume_of_a_state_directory_is_named_with_what_it_leaves(volume: Path, tmp_path: Path) -> None:
    state = volume / "state"
    flags = ("--socket", str(tmp_path / "h.sock"), "--host-pool", "256MiB", "--state-dir", str(state))

    def serve() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*SERVE, *flags], env=environment(), capture_output=True, text=True, timeout=60, check=False
        )

    (volume / "of another").write_bytes(bytes(200 * MIB))
    told = serve()
    assert told.returncode == 2, told.stderr
    assert f"the volume of {state} has 200 MiB left" in told.stderr
    for way_out in ("sizeLimit", "remount,size", "without --state-dir"):
        assert way_out in told.stderr
    assert not state.exists()
    (volume / "of another").unlink()
    served = start(tmp_path / "h.sock", *flags[2:], "--http", "off")
    assert [segment.backing for segment in served.client().server_info().segments] == ["file"]
    assert served.end() == 0
    for pipe in (served.process.stdout, served.process.stderr):
        assert pipe is not None
        pipe.close()


LIBC = ctypes.CDLL(None)


def bound_by_memlock() -> None:
    """Take the limit, and give up root's exemption from it; run in the child before it becomes the program."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (8 * MIB, 8 * MIB))
    LIBC.prctl(24, 14, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_IPC_LOCK


def test_a_pool_beyond_the_locked_memory_limit_names_it_before_anything_is_made(tmp_path: Path) -> None:
    told = subprocess.run(
        [*SERVE, "--socket", str(tmp_path / "h.sock"), "--host-pool", "256MiB", "--mlock"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=bound_by_memlock,
    )
    assert told.returncode == 2, told.stderr
    assert "--mlock is true: must fit the locked-memory limit of 8 MiB" in told.stderr
    for way_out in ("ulimit -l", "LimitMEMLOCK", "CAP_IPC_LOCK", "without --mlock"):
        assert way_out in told.stderr
    assert list(tmp_path.iterdir()) == []


@contextlib.contextmanager
def huge_pages(count: int) -> Iterator[int]:
    """Set so many aside for a while; gives how many the kernel found."""
    setting = HUGE_PAGES / "nr_hugepages"
    before = setting.read_text()
    try:
        setting.write_text(str(count))
        yield int(setting.read_text())
    finally:
        setting.write_text(before)


@as_root
@pytest.mark.alone  # a pool of any other test would take of them
def test_huge_pages_that_were_asked_for_are_had_or_the_pool_is_refused(tmp_path: Path) -> None:
    if not HUGE_PAGES.exists():
        pytest.skip("this kernel has no huge pages of 2 MiB")
    flags = ("--socket", str(tmp_path / "h.sock"), "--host-pool", "256MiB", "--pages", "huge")
    with huge_pages(8):
        told = subprocess.run(
            [*SERVE, *flags], env=environment(), capture_output=True, text=True, timeout=60, check=False
        )
        assert told.returncode == 2, told.stderr
        assert "of huge pages 16 MiB is left (those of 2 MiB that are free)" in told.stderr
        assert "nr_hugepages" in told.stderr
        assert "--pages auto" in told.stderr
        assert list(tmp_path.iterdir()) == []
    with huge_pages(140) as found:
        if found < 140:
            pytest.skip(f"only {found} huge pages can be set aside now: memory is in pieces")
        served = start(tmp_path / "h.sock", "--host-pool", "256MiB", "--pages", "huge", "--http", "off")
        with Client(served.target) as client:
            (segment,) = client.server_info().segments
            assert (segment.backing, segment.page_bytes) == ("hugetlb", 2 * MIB)
        with HostPool.attach(served.target) as writer, HostPool.attach(served.target, role="reader", rank=1) as reader:
            last = writer.pages - 1
            writer.write_row(77, page=last, row=63, data=bytes([9]) * 656)
            assert reader.read_row(77, page=last, row=63) == bytes([9]) * 656
        del writer, reader
        gc.collect()  # what was mapped here stays so until its last user goes
        assert served.end() == 0
        for pipe in (served.process.stdout, served.process.stderr):
            assert pipe is not None
            pipe.close()
        assert int((HUGE_PAGES / "free_hugepages").read_text()) == found, "every huge page came back"


NO_POLICIES = """
    import ctypes, struct, sys

    # A seccomp filter as container runtimes install: mbind answers EPERM, everything else is let through.
    MBIND, EPERM = {"x86_64": 237, "aarch64": 235}[sys.argv[1]], 1
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, MBIND), (0x06, 0, 0, 0x00050000 | EPERM), (0x06, 0, 0, 0x7FFF0000)]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    held = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.create_string_buffer(program), 0, 0) == 0, ctypes.get_errno()

    from hisparse_svc import Node
    from hisparse_svc.doctor import examine

    (placement,) = [check for check in examine() if check.name == "placement"]
    assert (placement.state, placement.found) == ("note", "mbind is refused"), placement
    for numa in ("prefer:0", "bind:0"):
        with Node.embedded(host_pool="256MiB", numa=numa) as node:
            (segment,) = node.client.server_info().segments
            assert segment.placed_by == "by_first_touch", segment
            assert segment.node_percent == {0: 100}, segment
            (note,) = node.client.server_info().notes
            assert node.warnings == [note]
            assert "mbind" in note and "seccomp" in note, note
    print("placed")
"""


def test_a_node_is_kept_to_by_first_touch_where_policies_are_refused() -> None:
    machine = os.uname().machine
    if machine not in ("x86_64", "aarch64"):
        pytest.skip(f"the number of mbind on {machine} is not known here")
    told = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(NO_POLICIES), machine],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert told.stdout == "placed\n", told.stderr


def test_a_node_that_is_kept_to_is_shown_by_every_answer(tmp_path: Path) -> None:
    served = start(tmp_path / "h.sock", "--host-pool", "256MiB", "--numa", "bind:0", "--http", "off")
    client = served.client()
    info = client.server_info()
    assert [(segment.placement, segment.placed_by) for segment in info.segments] == [("bound to node 0", "by_policy")]
    assert info.segments[0].node_percent == {0: 100}
    assert info.notes == ()
    assert client.get_capacity().pool("host_pages").numa_node == 0
    assert client.get_capacity().pool("seats").numa_node is None
    assert served.end() == 0
    for pipe in (served.process.stdout, served.process.stderr):
        assert pipe is not None
        pipe.close()


def test_a_pool_larger_than_the_node_can_use_is_said_with_the_size_that_was_typed() -> None:
    with hisparse_svc.Node.embedded(host_pool="100TiB", backing="none") as node:
        (warning,) = node.warnings
    assert "--host-pool is 100 TiB" in warning
    assert "indexer_tokens" in warning
    with hisparse_svc.Node.embedded(host_pool="1GiB", backing="none") as node:
        assert node.warnings == []


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("64MiB", "64 MiB"),
        ("100000000", "100000000 bytes"),
        ("256MiB", "256 MiB"),
        ("100TiB", "100 TiB, of which 362.1 GiB can be used"),
        ("auto", "auto, which is 100 MiB here"),
    ],
)
def test_a_refused_pool_is_named_as_it_was_typed(typed: str, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        hisparse_svc.Node.embedded(host_pool=typed, assume_memory="200MiB")
    assert [(problem.field, problem.value) for problem in refused.value.problems] == [("--host-pool", said)]
