"""The example routers, each against running nodes: one lease per request, whatever the nodes answer."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from hisparse_svc import LeaseState

from tests.conformance.faulty import Fault, Faulty, Refusal
from tests.conftest import ROOT, environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hisparse_svc import Client

    from tests.serve.conftest import Served

GO = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
PATIENCE_S = 60


def python_router(scratch: Path) -> list[str]:
    del scratch
    return [sys.executable, str(ROOT / "examples/router.py")]


def rust_router(scratch: Path) -> list[str]:
    del scratch
    if shutil.which("cargo") is None:
        pytest.skip("no cargo here: the Rust router is not built")
    build = ["cargo", "build", "--quiet", "--package", "router-rust", "--message-format", "json"]
    built = subprocess.run(build, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    told = [json.loads(line) for line in built.stdout.splitlines()]
    (program,) = {each["executable"] for each in told if each.get("executable")}  # wherever cargo's target folder is
    return [str(program)]


def go_router(scratch: Path) -> list[str]:
    if GO is None:
        pytest.skip("no go here: the Go router is not built")
    built = subprocess.run(
        [GO, "build", "-o", str(scratch / "router-go"), "."],
        cwd=ROOT / "examples/router-go",
        capture_output=True,
        text=True,
        check=False,
    )
    if "dial tcp" in built.stderr or "no such host" in built.stderr:
        pytest.skip(f"the Go modules cannot be fetched here: {built.stderr[-200:]}")
    assert built.returncode == 0, built.stderr
    return [str(scratch / "router-go")]


@pytest.fixture(scope="module", params=[python_router, rust_router, go_router], ids=["python", "rust", "go"])
def router(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    command: list[str] = request.param(tmp_path_factory.mktemp("router"))
    return command


class Routed:
    """A router that holds its request until it is let go."""

    def __init__(self, command: list[str], *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*command, *arguments],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def said(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            pytest.fail(f"the router said nothing: {self.process.communicate(timeout=PATIENCE_S)}")
        return json.loads(line)

    def end(self) -> int:
        self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode


@pytest.fixture
def route(router: list[str]) -> Iterator[Callable[..., Routed]]:
    begun: list[Routed] = []

    def begin(*arguments: str) -> Routed:
        begun.append(Routed(router, *arguments))
        return begun[-1]

    yield begin
    for each in begun:
        if each.process.poll() is None:
            each.end()


def full(node: Served) -> Client:
    """A client that holds all there is of a node."""
    client = node.client()
    client.admit(client.get_capacity().largest_grant_tokens)
    return client


def reasons(said: Any) -> list[str]:
    return [each["reason"] for each in said["tried"]]


def test_a_full_node_is_passed_by(route: Callable[..., Routed], serve: Callable[..., Served]) -> None:
    first, second = serve(name="a"), serve(name="b")
    full(first)
    routed = route("4000", "96", first.target, second.target)
    said = routed.said()
    assert said["node"] == second.target
    (lease,) = second.client().list_leases()
    assert (lease.id, lease.state, lease.tokens) == (said["lease_id"], LeaseState.COMMITTED, 4096)
    assert routed.end() == 0
    assert second.client().list_leases() == []


class SaysWhenItRefused(Fault):
    """A sound service, of which one knows when a router has heard that it is full."""

    def __init__(self) -> None:
        super().__init__()
        self.has_refused = threading.Event()

    def refused(self, name: str, request: Any, refusal: Refusal) -> Refusal:
        del name, request
        self.has_refused.set()
        return refusal


def test_when_all_are_full_it_comes_back_as_told(
    route: Callable[..., Routed], serve: Callable[..., Served], tmp_path: Path
) -> None:
    nodes = [serve(name=name) for name in "ab"]
    clients = [full(node) for node in nodes]
    fault = SaysWhenItRefused()
    with Faulty(nodes[1].target, tmp_path / "p.sock", fault) as proxy:
        routed = route("--deadline", "20", "4000", "96", nodes[0].target, proxy.target)
        assert fault.has_refused.wait(PATIENCE_S)
        (held,) = clients[1].list_leases()
        clients[1].release(held.id)
        said = routed.said()
        assert routed.end() == 0
    assert said["node"] == proxy.target
    assert set(reasons(said)) == {"POOL_BUSY"}
    # Both were asked once a round, and a round follows the RetryInfo of about a second: no busy loop.
    assert 2 <= len(reasons(said)) <= 8


def test_full_until_the_deadline_is_busy(route: Callable[..., Routed], serve: Callable[..., Served]) -> None:
    node = serve()
    full(node)
    routed = route("--deadline", "1.5", "4000", "96", node.target)
    assert routed.said()["refused"] == "POOL_BUSY"
    assert routed.end() == 4


def test_what_never_fits_is_not_tried_again(route: Callable[..., Routed], serve: Callable[..., Served]) -> None:
    nodes = [serve(name=name) for name in "ab"]
    routed = route("1000000", "0", *(node.target for node in nodes))
    said = routed.said()
    assert (said["refused"], reasons(said)) == ("NEVER_FITS", ["NEVER_FITS", "NEVER_FITS"])
    assert routed.end() == 4


def test_draining_and_absent_nodes_are_passed_by(route: Callable[..., Routed], serve: Callable[..., Served]) -> None:
    first, second = serve(name="a"), serve(name="b")
    first.client().drain()
    absent = f"unix:{first.socket}.none"
    routed = route("100", "0", absent, first.target, second.target)
    said = routed.said()
    assert said["node"] == second.target
    assert said["tried"][0] == {"node": absent, "reason": "UNREACHABLE"}
    assert routed.end() == 0


class AnswersAreLost(Fault):
    """Admit is done, and nobody hears of it; for a while nothing else gets through either."""

    silence_s = 0.0

    def asked(self, name: str, request: Any) -> Any:
        if name == "Release" and time.monotonic() < self.seen.get("until", 0.0):
            time.sleep(2)
        return request

    def answered(self, name: str, request: Any, answer: Any) -> Any:
        if name == "Admit":
            self.seen["request_id"] = request.request_id
            self.seen["until"] = time.monotonic() + self.silence_s
            time.sleep(3)
        return answer


class NothingGetsThroughForAWhile(AnswersAreLost):
    silence_s = 3.0


@pytest.mark.parametrize("fault", [AnswersAreLost, NothingGetsThroughForAWhile], ids=lambda fault: fault.__name__)
def test_a_lost_answer_never_makes_two_leases(
    fault: type[Fault],
    route: Callable[..., Routed],
    serve: Callable[..., Served],
    tmp_path: Path,
) -> None:
    lossy, sound = serve(name="a"), serve(name="b")
    sound.client().admit(1_000)  # so that the lossy one has more room, and is asked first
    with Faulty(lossy.target, tmp_path / "p.sock", fault()) as proxy:
        routed = route("--deadline", "30", "--request-id", "only one", "4000", "96", proxy.target, sound.target)
        most, watch = 0, [lossy.client(), sound.client()]
        while routed.process.poll() is None:
            held = [lease for client in watch for lease in client.list_leases() if lease.request_id == "only one"]
            most = max(most, len(held))
            if any(lease.state == LeaseState.COMMITTED for lease in held):
                break
            time.sleep(0.01)
        said = routed.said()
        assert (said["node"], said["tried"]) == (sound.target, [{"node": proxy.target, "reason": "NO_ANSWER"}])
        assert most == 1, "the request had two leases at one time"
        assert proxy.fault.seen["request_id"] == "only one"
        assert lossy.client().list_leases() == []
        assert routed.end() == 0
    assert [lease.request_id for lease in sound.client().list_leases()] != ["only one"]
