"""Starting and stopping: the ready line, signals under load, and a Python that never lets go of the GIL."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
import urllib.request
from typing import TYPE_CHECKING

import hisparse_svc
import pytest
from hisparse_svc import HiSparseError, Node

from tests.conftest import environment
from tests.serve.conftest import SMALL

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.serve.conftest import Served


def test_the_ready_line_names_socket_and_capacity(serve: Callable[..., Served]) -> None:
    served = serve("--http", "127.0.0.1:0")
    assert served.ready.startswith("ready: ")
    assert str(served.socket) in served.ready
    info = served.client().server_info()
    http = next(address for address in info.addresses if address.startswith("http://"))
    with urllib.request.urlopen(f"{http}/healthz", timeout=5) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(f"{http}/metrics", timeout=5) as answer:
        assert b"hisparse_pages" in answer.read()


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_under_load_ends_with_0_and_no_socket(node: Served, kind: signal.Signals) -> None:
    stop, answered = threading.Event(), threading.Semaphore(0)
    outcomes: list[str] = []

    def load() -> None:
        with hisparse_svc.Client(node.target, timeout_s=2) as client:
            while not stop.is_set():
                try:
                    with client.admit(64):
                        answered.release()
                except HiSparseError as failure:
                    outcomes.append(type(failure).__name__)
                    return

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        assert answered.acquire(timeout=20)
    node.process.send_signal(kind)
    assert node.process.wait(timeout=15) == 0
    stop.set()
    for thread in threads:
        thread.join(timeout=10)
    assert not node.socket.exists()
    assert set(outcomes) <= {"Draining", "Unreachable", "NoAnswer"}, outcomes
    assert node.process.stderr is not None
    assert node.process.stderr.read() == ""


HOLD_THE_GIL = """
import ctypes, sys, threading
import hisparse_svc

node = hisparse_svc.Node.embedded(socket=sys.argv[1], host_pool="1GiB")
print("ready", flush=True)
# PyDLL keeps the GIL during the call: for ten seconds no other Python code of this process runs.
ctypes.PyDLL(None).usleep(10_000_000)
"""


def test_a_thread_that_holds_the_gil_does_not_stop_answers(tmp_path: Path) -> None:
    socket = tmp_path / "node.sock"
    held = subprocess.Popen(
        [sys.executable, "-c", HOLD_THE_GIL, str(socket)], env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert held.stdout is not None
    try:
        assert held.stdout.readline() == "ready\n"
        time.sleep(0.2)
        begun = time.monotonic()
        with hisparse_svc.Client(f"unix:{socket}", timeout_s=5) as client:
            for _ in range(50):
                with client.admit(64):
                    pass
        assert time.monotonic() - begun < 5
        assert held.poll() is None, "the holder must still hold while we are answered"
    finally:
        held.kill()
        held.wait(timeout=10)
        held.stdout.close()


def test_an_embedded_node_serves_its_block_and_leaves_nothing() -> None:
    with Node.embedded(host_pool="1GiB") as node:
        socket = node.config.socket
        assert node.client.get_capacity().pool("host_pages").total == node.description()["host_pages"]
        assert socket.is_socket()
    assert not socket.parent.exists()
    assert node.wait(0)


def test_an_embedded_node_says_what_is_wrong_with_its_settings() -> None:
    with pytest.raises(hisparse_svc.InvalidInput, match="did you mean --host-pool"):
        Node.embedded(host_pol="1GiB")
    with pytest.raises(hisparse_svc.InvalidInput) as raised:
        Node.embedded(host_pool="1XB", hot_rows=-3)
    assert [problem.field for problem in raised.value.problems] == ["--host-pool", "--hot-rows"]


def test_what_is_wrong_with_a_model_is_named_as_its_file_names_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["DeepseekV32ForCausalLM"], "num_hidden_layers": 0}')
    with pytest.raises(hisparse_svc.InvalidInput) as raised:
        hisparse_svc.Node.embedded(model=str(tmp_path))
    named = {problem.field for problem in raised.value.problems}
    assert {"num_hidden_layers", "kv_lora_rank"} <= named, named
    with pytest.raises(hisparse_svc.InvalidInput, match="--model is"):
        hisparse_svc.Node.embedded(model="no-such-preset")


def test_importing_the_package_brings_in_neither_grpc_nor_protobuf() -> None:
    code = "import sys, hisparse_svc; print([m for m in ('grpc', 'google.protobuf', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("ending", ["os._exit(0)", "sys.exit(0)", "node.stop(); sys.exit(0)", "del node; sys.exit(0)"])
def test_a_forked_child_leaves_the_embedded_node_to_its_parent(ending: str) -> None:
    script = f"""
import os, sys
from hisparse_svc import Client, Node

node = Node.embedded(host_pool="1GiB", backing="none")
child = os.fork()
if child == 0:
    assert node.stopping and node.wait(0.0)
    {ending}
_, status = os.waitpid(child, 0)
assert status == 0, status
socket = node.config.socket
assert socket.exists() and not node.stopping
with Client(node.target) as client:
    assert client.get_capacity().max_request_tokens > 0
node.stop()
assert not socket.parent.exists()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_a_damaged_epoch_file_is_told_and_mended(tmp_path: Path) -> None:
    (tmp_path / "node.sock.epoch").write_text("")
    command = [sys.executable, "-m", "hisparse_svc", "serve", "--socket", str(tmp_path / "node.sock"), *SMALL]
    served = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert served.stdout is not None
    assert served.stdout.readline().startswith("ready: ")
    served.terminate()
    _, told = served.communicate(timeout=20)
    assert "warning: the epoch file" in told
    assert int((tmp_path / "node.sock.epoch").read_text()) > 0
