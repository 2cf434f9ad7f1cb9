"""An engine in Python whose service is killed: it goes on, in the same memory, and is told what it must know."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from hisparse_svc import Client
from hisparse_svc.engine import HostPool
from hisparse_svc.errors import HiSparseError

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = ["--model", "glm-5.2", "--host-pool", "256MiB", "--http", "off"]


def serve(socket: Path) -> subprocess.Popen[bytes]:
    """Start a service there; it answers soon."""
    command = [sys.executable, "-m", "hisparse_svc", "serve", "--socket", str(socket), *SETTINGS]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ.copy())


def ready(socket: Path, service: subprocess.Popen[bytes]) -> HostPool:
    """Attach as soon as the service lets engines in."""
    end = time.monotonic() + 60
    while True:
        try:
            return HostPool.attach(f"unix:{socket}")
        except HiSparseError:
            assert service.poll() is None, "the service ended"
            assert time.monotonic() < end
            time.sleep(0.05)


def test_an_engine_outlives_its_service(tmp_path: Path) -> None:
    socket = tmp_path / "h.sock"
    service = serve(socket)
    try:
        with ready(socket, service) as pool:
            held = pool.client.admit(640, 0, wait_s=10)
            lease = pool.client.commit(held.lease.id, held.lease.epoch)
            page = lease.extents[0].first_page
            pool.write_row(5, page=page, row=3, data=bytes([7]) * 656)
            service.send_signal(signal.SIGKILL)
            service.wait()
            pool.write_row(5, page=page, row=4, data=bytes([8]) * 656)
            service = serve(socket)
            notice = pool.next_notice(60)
            assert notice is not None
            assert notice[0] == "resumed"
            assert pool.standing == "open"
            assert pool.epoch == int(notice[1]) > lease.epoch
            with Client(f"unix:{socket}", session=pool.token) as client:
                now = client.get_lease(lease.id)
                assert (now.epoch, now.extents) == (pool.epoch, lease.extents)
                assert now.state == "committed"
                assert not client.release(now.id).quarantined
            assert [pool.read_row(5, page=page, row=row)[0] for row in (3, 4)] == [7, 8]
    finally:
        service.kill()
        service.wait()
