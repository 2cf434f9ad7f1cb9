"""`serve --backing memory`: room asked for first, the pool made before the ready line, and a stop at any time."""

from __future__ import annotations

import signal
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest
from hisparse_svc import Client, Unreachable

from tests.conftest import environment, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hisparse_svc.rpc.values import ServerInfo

    from tests.serve.conftest import Served

MIB = 1 << 20


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (
            "--host-pool 1GiB",
            "--host-pool is 1 GiB: --assume-memory leaves 512 MiB; ask for 512 MiB or less; otherwise raise "
            "--assume-memory",
        ),
        (
            "--host-pool 400GiB",
            "--host-pool is 400 GiB, of which 362.1 GiB can be used: --assume-memory leaves 512 MiB; ask for 512 MiB "
            "or less; otherwise raise --assume-memory",
        ),
        (
            "--ratio 40",
            "--ratio is 40, which makes a host pool of 266.1 GiB: --assume-memory leaves 512 MiB; give a smaller "
            "--ratio, or --host-pool in its place: ask for 512 MiB or less; otherwise raise --assume-memory",
        ),
    ],
)
def test_a_pool_beyond_the_machine_says_what_was_asked_what_there_is_and_what_to_do(
    flags: str, told: str, tmp_path: Path
) -> None:
    refused = run("serve", "--socket", str(tmp_path / "h.sock"), *flags.split(), "--assume-memory", "512MiB")
    assert (refused.code, refused.err) == (2, f"error: {told}\n")
    assert list(tmp_path.iterdir()) == []


def test_auto_takes_what_is_safe_and_owns_it(serve: Callable[..., Served]) -> None:
    served = serve("--backing", "memory", "--host-pool", "auto", "--assume-memory", "600MiB")
    info = served.client().server_info()
    assert info.backing == "memory"
    assert 217 * MIB < info.host_bytes <= 300 * MIB
    assert "backing memory" in served.ready


def answered(client: Client) -> ServerInfo:
    """Ask until the service answers, at most twenty seconds: it answers before its pool is made."""
    for _ in range(2_000):
        try:
            return client.server_info()
        except Unreachable:
            time.sleep(0.01)
    pytest.fail("it does not answer")


def test_a_stop_while_pages_are_made_ends_with_0_and_leaves_nothing(tmp_path: Path) -> None:
    import subprocess  # noqa: PLC0415
    import sys  # noqa: PLC0415

    socket = tmp_path / "h.sock"
    flags = ["--socket", str(socket), "--host-pool", "4GiB", "--http", "127.0.0.1:0"]
    made = subprocess.Popen(
        [sys.executable, "-m", "hisparse_svc", "serve", *flags],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with Client(f"unix:{socket}", timeout_s=5) as client:
        http = next(address for address in answered(client).addresses if address.startswith("http://"))
        try:
            urllib.request.urlopen(f"{http}/readyz", timeout=5).close()
        except urllib.error.HTTPError as answer:
            with answer:
                assert answer.code == 503
                assert b"making the host pool: " in answer.read()
    made.send_signal(signal.SIGTERM)
    out, err = made.communicate(timeout=20)
    assert made.returncode == 0, err
    assert "error" not in err
    assert out.splitlines()[-1] == "stopped"
    assert {path.suffix for path in tmp_path.iterdir()} <= {".epoch", ".journal"}, "what the next start goes by"
