"""The service as Python holds it: started, waited for, stopped; answering while Python is busy."""

import os
import signal
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from hisparse_svc._core import Model, Plan, Service, plan
from hisparse_svc._proto import capacity_pb2
from hisparse_svc.errors import InvalidInput


def small_plan() -> Plan:
    return plan({"kv_bytes": "20GiB", "host_pool": "1GiB"}, Model.preset("glm-5.2"))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    running = Service.start(small_plan(), socket=tmp_path / "h.sock", http="127.0.0.1:0")
    yield running
    running.stop(0)
    assert running.wait(10)


def get(service: Service, path: str) -> str:
    with urllib.request.urlopen(service.addresses[-1] + path, timeout=10) as answer:
        return str(answer.read().decode())


def plain_get_capacity(service: Service, options: list[tuple[str, str]]) -> capacity_pb2.GetCapacityResponse:
    """Ask with grpcio alone, as a router does that knows nothing of this package."""
    with grpc.insecure_channel(service.addresses[0], options=options) as channel:
        call = channel.unary_unary(
            "/hisparse.v1.CapacityService/GetCapacity",
            request_serializer=capacity_pb2.GetCapacityRequest.SerializeToString,
            response_deserializer=capacity_pb2.GetCapacityResponse.FromString,
        )
        answer: capacity_pb2.GetCapacityResponse = call(capacity_pb2.GetCapacityRequest(), timeout=10)
        return answer


def child(script: str, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_service_tells_where_it_is_and_what_it_has(service: Service, tmp_path: Path) -> None:
    assert service.addresses[0] == f"unix:{tmp_path}/h.sock"
    assert service.ready
    pages = small_plan().logical_tokens // 64
    assert f'hisparse_pages{{pool="host_pages",numa="",state="free"}} {pages}' in get(service, "/metrics")
    with pytest.raises(urllib.error.HTTPError):
        get(service, "/nothing")


def test_plain_grpcio_is_answered_once_it_names_an_authority(service: Service) -> None:
    answer = plain_get_capacity(service, [("grpc.default_authority", "localhost")])
    assert {pool.name for pool in answer.pools} >= {"host_pages", "seats", "indexer_tokens", "request_slots"}
    # Without it grpcio sends the socket's path, which HTTP/2 servers refuse; if that changes, docs/proto.md is wrong.
    with pytest.raises(grpc.RpcError):
        plain_get_capacity(service, [])


def test_waiting_with_a_timeout_returns_while_it_runs(service: Service) -> None:
    assert not service.wait(0.05)


def test_a_stop_ends_it_and_removes_the_socket(tmp_path: Path) -> None:
    socket = tmp_path / "h.sock"
    running = Service.start(small_plan(), socket=socket)
    assert socket.exists()
    running.stop()
    assert running.wait(10)
    assert not socket.exists()
    assert not running.ready


def test_a_forgotten_service_stops(tmp_path: Path) -> None:
    socket = tmp_path / "h.sock"
    running = Service.start(small_plan(), socket=socket)
    del running
    assert not socket.exists()


def test_wrong_settings_come_back_as_problems(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        Service.start(small_plan(), threads=0)
    assert [problem.field for problem in caught.value.problems] == ["socket", "threads"]
    with pytest.raises(InvalidInput, match="needs certificates on both sides"):
        Service.start(small_plan(), listen="0.0.0.0:0")
    with pytest.raises(InvalidInput, match="at most 107 bytes"):
        Service.start(small_plan(), socket=tmp_path / ("s" * 107))
    with pytest.raises(InvalidInput, match="stop_grace_s"):
        Service.start(small_plan(), socket=tmp_path / "h.sock", stop_grace_s=float("nan"))
    assert list(tmp_path.iterdir()) == []


def test_it_answers_while_a_python_thread_holds_the_interpreter(service: Service) -> None:
    asks = """
        import sys, urllib.request
        for _ in range(50):
            urllib.request.urlopen(sys.argv[1], timeout=10).read()
        print("answered")
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        asking = child(asks, service.addresses[-1] + "/metrics")
        while asking.poll() is None:
            busy_until = time.monotonic() + 0.2
            while time.monotonic() < busy_until:
                pass
    finally:
        sys.setswitchinterval(interval)
    assert asking.communicate()[0] == "answered\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_without_a_traceback(tmp_path: Path, number: signal.Signals) -> None:
    serves = """
        import sys
        from hisparse_svc._core import Model, Service, plan
        budget = plan({"kv_bytes": "20GiB", "host_pool": "1GiB"}, Model.preset("glm-5.2"))
        running = Service.start(budget, socket=sys.argv[1], handle_signals=True)
        print("ready", flush=True)
        running.wait()
        print("stopped", flush=True)
    """
    socket = tmp_path / "h.sock"
    serving = child(serves, str(socket))
    assert serving.stdout is not None
    assert serving.stdout.readline() == "ready\n"
    os.kill(serving.pid, number)
    assert serving.communicate(timeout=20)[0] == "stopped\n"
    assert serving.returncode == 0
    assert not socket.exists()
