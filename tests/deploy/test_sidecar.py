"""Service and engine as two containers of a pod: no process of one has a number in the other."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hisparse_svc import Client, LeaseState
from hisparse_svc.engine import HostPool

from tests.conftest import environment
from tests.deploy.prometheus import need, until

if TYPE_CHECKING:
    from pathlib import Path

APART = ("--pid", "--fork", "--kill-child", "--mount-proc")


def test_an_engine_of_another_container_attaches_and_keeps_its_leases(tmp_path: Path) -> None:
    unshare, socket = need("unshare"), tmp_path / "node.sock"
    if subprocess.run([unshare, *APART, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may make no process namespace")
    command = [unshare, *APART, sys.executable, "-m", "hisparse_svc", "serve", "--socket", str(socket)]
    command += ["--host-pool", "256MiB", "--http", "off"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as served:
        assert served.stdout is not None
        try:
            assert served.stdout.readline().startswith(b"ready")
            with HostPool.attach(f"unix:{socket}") as pool, Client(f"unix:{socket}") as router:
                lease = router.admit(64).lease
                held = pool.client.commit(lease.id, lease.epoch)
                assert held.expires_at is None, "it lives as long as the session"
                assert pool.publish(held, [os.urandom(32)]) == 1
                assert router.get_lease(lease.id).expires_at is None
            with Client(f"unix:{socket}") as router:
                state = LeaseState.QUARANTINED
                until(lambda: router.get_lease(lease.id).state is state, "its lease ends with its session")
        finally:
            served.kill()
