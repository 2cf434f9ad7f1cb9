"""Several real servers as one: where a request goes, and that it never holds two leases."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from hisparse_svc import InvalidInput, NeverFits, PoolBusy, Unreachable, fleet
from hisparse_svc.fleet import aio
from hisparse_svc.fleet.journey import Ask
from hisparse_svc.rpc.values import Request

from tests.conformance.faulty import Fault, Faulty

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hisparse_svc import Client

    from tests.serve.conftest import Served


def until(what: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Wait until something is so."""
    over = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < over, "it did not come about"
        time.sleep(0.01)
    return found


def full(node: Served) -> Client:
    """A client that holds all there is of a node."""
    client = node.client()
    client.admit(client.get_capacity().largest_grant_tokens, ttl_s=60)
    return client


def states(fleet: Any) -> dict[str, str]:
    return {view.name: view.state for view in fleet.nodes()}


def leases(*nodes: Served) -> list[tuple[str, str]]:
    return [(node.target, lease.request_id) for node in nodes for lease in node.client().list_leases()]


def test_a_request_goes_to_the_node_with_most_left(serve: Callable[..., Served], fleet_of: Callable[..., Any]) -> None:
    a, b = serve(name="a"), serve(name="b")
    a.client().admit(10_000, ttl_s=60)
    nodes = fleet_of([f"a={a.target}", f"b={b.target}"])
    nodes.wait_until_seen()
    assert [(each.name, each.standing) for each in nodes.rank(4_096)] == [("b", "fits"), ("a", "fits")]
    held = nodes.admit(4_000, 96, request_id="r")
    assert (held.node, held.target, held.attempts) == ("b", b.target, ())
    assert leases(b) == [(b.target, "r")]
    held.release()
    assert leases(b) == []


def test_a_full_node_is_passed_by_without_asking(serve: Callable[..., Served], fleet_of: Callable[..., Any]) -> None:
    a, b = serve(name="a"), serve(name="b")
    full(a)
    nodes = fleet_of([a.target, b.target])
    nodes.wait_until_seen()
    for _ in range(4):
        held = nodes.admit(4_000)
        assert (held.node, held.attempts) == (b.target, ())


def test_a_wait_for_room_ends_when_a_watch_tells_of_it(
    serve: Callable[..., Served], fleet_of: Callable[..., Any]
) -> None:
    node = serve()
    client = full(node)
    nodes = fleet_of([node.target])
    nodes.wait_until_seen()
    with pytest.raises(fleet.FleetBusy) as raised:
        nodes.admit(4_000)
    assert isinstance(raised.value, PoolBusy)
    assert raised.value.retry_after_s
    (held,) = client.list_leases()
    timer = threading.Timer(0.3, lambda: client.release(held.id))
    begun = time.monotonic()
    timer.start()
    assert nodes.admit(4_000, wait_s=10).attempts == ()
    assert time.monotonic() - begun > 0.25
    timer.join()


def test_what_never_fits_is_one_error_at_once(serve: Callable[..., Served], fleet_of: Callable[..., Any]) -> None:
    small, large = serve(name="a"), serve("--host-pool", "2GiB", name="b")
    nodes = fleet_of([small.target, large.target])
    nodes.wait_until_seen()
    most = large.client().get_capacity().max_request_tokens
    begun = time.monotonic()
    with pytest.raises(fleet.NeverFitsAnywhere, match=f"no node of 2 can ever hold it.*{most:,}") as raised:
        nodes.admit(most + 1, wait_s=30)
    assert isinstance(raised.value, NeverFits)
    assert (raised.value.limit, raised.value.limit_value) == ("max_request_tokens", most)
    assert time.monotonic() - begun < 5
    assert nodes.admit(most).node == large.target


def test_a_lease_in_hand_shows_its_node_and_its_request(
    serve: Callable[..., Served], fleet_of: Callable[..., Any]
) -> None:
    nodes = fleet_of([f"a={serve(name='a').target}"])
    held = nodes.admit(100, request_id="chat-1")
    shown = repr(getattr(held, "held", held))
    assert shown.startswith("HeldLease(node='a', lease=")
    assert "request_id='chat-1', tokens=100, state='reserved'" in shown


def test_an_empty_fleet_says_so(tmp_path: Path, fleet_of: Callable[..., Any]) -> None:
    (tmp_path / "nodes").write_text("# none yet\n")
    with pytest.raises(
        fleet.EmptyFleet, match=r"the fleet has no node: the file .*/nodes names none; look whether it is named rightly"
    ):
        fleet_of(f"file:{tmp_path}/nodes").admit(100)
    with pytest.raises(fleet.EmptyFleet, match="no node: nodes is"):
        fleet_of(f"file:{tmp_path}/absent").admit(100)


class Hung:
    """A directory that never says anything."""

    def follow(self, closing: threading.Event) -> Iterator[tuple[fleet.Member, ...]]:
        closing.wait()
        yield from ()

    def __str__(self) -> str:
        return "the hung directory"


def test_a_directory_that_does_not_answer_is_waited_for_once_and_named(fleet_of: Callable[..., Any]) -> None:
    begun = time.monotonic()
    nodes = fleet_of(Hung(), timeout_s=0.3)
    assert nodes.wait_until_seen(0.3) is False
    assert nodes.nodes() == []
    with pytest.raises(
        fleet.EmptyFleet, match="the hung directory cannot be read: no answer yet; look whether what keeps it is up"
    ):
        nodes.admit(100)
    assert 0.3 <= time.monotonic() - begun < 3.0


def test_all_nodes_draining_is_an_error_of_its_own(serve: Callable[..., Served], fleet_of: Callable[..., Any]) -> None:
    served = [serve(name=name) for name in "ab"]
    for node in served:
        node.client().drain()
    nodes = fleet_of([node.target for node in served])
    nodes.wait_until_seen()
    with pytest.raises(fleet.AllDraining, match="all 2 nodes that could hold it and answer are draining"):
        nodes.admit(100)
    assert set(states(nodes).values()) == {"draining"}
    served[1].client().drain(resume=True)
    assert nodes.admit(100, wait_s=5).node == served[1].target


def test_a_fleet_of_nobody_names_each_nodes_failure(tmp_path: Path, fleet_of: Callable[..., Any]) -> None:
    nodes = fleet_of([f"a=unix:{tmp_path}/a.sock", "b=no.such.host.invalid:7411"])
    with pytest.raises(fleet.NoNodeAnswers, match="none of 2 nodes answers: a: there is no socket") as raised:
        nodes.admit(100)
    assert isinstance(raised.value, Unreachable)
    assert set(raised.value.failures) == {"a", "b"}
    assert "nothing answers at no.such.host.invalid:7411" in raised.value.failures["b"]


def test_an_unknown_node_names_the_nearest(serve: Callable[..., Served], fleet_of: Callable[..., Any]) -> None:
    node = serve()
    nodes = fleet_of([f"decode-0={node.target}"])
    assert nodes.client("decode-0") is not None
    with pytest.raises(
        fleet.UnknownNode, match=r'node is "decode-O": is no node of this fleet; did you mean decode-0\?'
    ):
        nodes.client("decode-O")


def test_settings_that_are_wrong_are_named_together(fleet_of: Callable[..., Any]) -> None:
    with pytest.raises(InvalidInput) as raised:
        fleet_of(["nonsense"], attempt_s=0, ttl_s="long")
    assert [problem.field for problem in raised.value.problems] == ["nodes", "attempt_s", "ttl_s"]
    with pytest.raises(InvalidInput, match="policy is"):
        fleet_of(["unix:/run/a.sock"], policy="luck")


def test_a_request_that_is_wrong_is_refused_as_one_node_would(
    serve: Callable[..., Served], fleet_of: Callable[..., Any]
) -> None:
    nodes = fleet_of([serve().target])
    with pytest.raises(InvalidInput, match="prompt_tokens"):
        nodes.admit(-1)
    with pytest.raises(InvalidInput, match="prompt_tokens"):
        nodes.admit(0)


class LosesAnswers(Fault):
    """Admit is done, and nobody hears of it; for a while nothing else gets through either."""

    silence_s = 0.0

    def asked(self, name: str, request: Any) -> Any:
        if name == "Release" and time.monotonic() < self.seen.get("until", 0.0):
            time.sleep(0.7)
        return request

    def answered(self, name: str, request: Any, answer: Any) -> Any:
        del request
        if name == "Admit":
            self.seen["until"] = time.monotonic() + self.silence_s
            time.sleep(1.0)
        return answer


class LosesEverythingForAWhile(LosesAnswers):
    silence_s = 1.5


@pytest.mark.parametrize("fault", [LosesAnswers, LosesEverythingForAWhile], ids=lambda fault: fault.__name__)
def test_a_lost_answer_never_makes_two_leases(
    fault: type[Fault], serve: Callable[..., Served], fleet_of: Callable[..., Any], tmp_path: Path
) -> None:
    lossy, sound = serve(name="a"), serve(name="b")
    sound.client().admit(1_000, ttl_s=60)  # so that the lossy one has more room, and is asked first
    with Faulty(lossy.target, tmp_path / "p.sock", fault()) as proxy:
        nodes = fleet_of([f"lossy={proxy.target}", f"sound={sound.target}"], attempt_s=0.5)
        nodes.wait_until_seen()
        held = nodes.admit(4_000, request_id="only one", ttl_s=30)
        assert (held.node, [each.reason for each in held.attempts]) == ("sound", ["NO_ANSWER"])
        assert "only one" not in [request for _, request in leases(lossy)]


def test_a_grant_that_comes_late_is_released_in_the_background(
    serve: Callable[..., Served], fleet_of: Callable[..., Any], tmp_path: Path
) -> None:
    slow, sound = serve(name="a"), serve(name="b")
    sound.client().admit(1_000, ttl_s=60)

    class GrantsAfterTheRelease(Fault):
        """The lease that a lost attempt left behind appears after the first release was answered."""

        def answered(self, name: str, request: Any, answer: Any) -> Any:
            if name == "Admit" and "admit" not in self.seen:
                self.seen["admit"] = request
                client.release(request_id=request.request_id)
                time.sleep(1.0)
            if name == "Release" and "release" not in self.seen:
                self.seen["release"] = client.admit(4_000, request_id="late", ttl_s=60)
            return answer

    client = slow.client()
    with Faulty(slow.target, tmp_path / "p.sock", GrantsAfterTheRelease()) as proxy:
        nodes = fleet_of([f"slow={proxy.target}", f"sound={sound.target}"], attempt_s=0.5)
        nodes.wait_until_seen()
        assert nodes.admit(4_000, request_id="late", ttl_s=60).node == "sound"
        until(lambda: "release" in proxy.fault.seen)
        until(lambda: client.list_leases() == [])


def test_a_request_whose_attempt_is_not_settled_in_time_says_where(
    serve: Callable[..., Served], fleet_of: Callable[..., Any], tmp_path: Path
) -> None:
    class Silent(Fault):
        def asked(self, name: str, request: Any) -> Any:
            if name in ("Admit", "Release") and not self.seen.get("over"):
                time.sleep(0.4)
            return request

    lossy = serve(name="a")
    with Faulty(lossy.target, tmp_path / "p.sock", Silent()) as proxy:
        nodes = fleet_of([f"lossy={proxy.target}"], attempt_s=0.2, timeout_s=1.0)
        nodes.wait_until_seen()
        with pytest.raises(fleet.Unsettled, match="what lossy made of the request is not known") as raised:
            nodes.admit(4_000, ttl_s=60)
        assert [each.reason for each in raised.value.attempts] == ["NO_ANSWER"]
        proxy.fault.seen["over"] = True
        until(lambda: leases(lossy) == [])  # the follow-up goes on by itself


def test_a_killed_node_is_left_alone_and_found_again(
    serve: Callable[..., Served], fleet_of: Callable[..., Any]
) -> None:
    a, b = serve(name="a"), serve(name="b")
    nodes = fleet_of([f"a={a.target}", f"b={b.target}"])
    nodes.wait_until_seen()
    a.process.send_signal(signal.SIGKILL)
    a.process.wait()
    until(lambda: states(nodes)["a"] == "silent")
    for _ in range(3):
        assert (held := nodes.admit(100)).node == "b"
        assert held.attempts == ()
    serve(name="a")
    until(lambda: states(nodes)["a"] == "live")


class NewGenerationComesLate(Fault):
    """That what was seen is void is said a while before what is so now."""

    def told(self, name: str, answers: Iterator[Any]) -> Iterator[Any]:
        del name
        void = False
        for message in answers:
            if void:
                time.sleep(0.5)
            void = message.WhichOneof("event") == "resync"
            yield message


def test_a_node_made_anew_is_live_when_its_new_pool_is_seen(
    serve: Callable[..., Served], fleet_of: Callable[..., Any], tmp_path: Path
) -> None:
    node = serve(name="a")
    with Faulty(node.target, tmp_path / "p.sock", NewGenerationComesLate()) as proxy:
        nodes = fleet_of([f"a={proxy.target}"])
        nodes.wait_until_seen()
        (before,) = nodes.nodes()
        node.process.kill()
        node.process.wait()
        until(lambda: states(nodes)["a"] == "silent")
        serve(name="a")
        until(lambda: states(nodes)["a"] == "live")
        (after,) = nodes.nodes()
    assert after.capacity.epoch > before.capacity.epoch


def test_a_hung_node_is_not_asked_and_comes_back(serve: Callable[..., Served], fleet_of: Callable[..., Any]) -> None:
    a, b = serve(name="a"), serve(name="b")
    b.client().admit(1_000, ttl_s=60)
    nodes = fleet_of([f"a={a.target}", f"b={b.target}"], attempt_s=0.3, stale_after_s=0.4)
    nodes.wait_until_seen()
    os.kill(a.process.pid, signal.SIGSTOP)
    try:
        until(lambda: states(nodes)["a"] == "silent")
        assert nodes.admit(100).attempts == ()
    finally:
        os.kill(a.process.pid, signal.SIGCONT)
    until(lambda: states(nodes)["a"] == "live")


def test_a_lease_of_a_dead_node_is_replaced_only_when_it_has_ended(
    serve: Callable[..., Served], fleet_of: Callable[..., Any]
) -> None:
    a, b = serve(name="a"), serve(name="b")
    b.client().admit(1_000, ttl_s=60)
    nodes = fleet_of([f"a={a.target}", f"b={b.target}"], attempt_s=0.3)
    nodes.wait_until_seen()
    held = nodes.admit(4_000, 1_000, request_id="r")
    held.commit(1.5)
    assert held.node == "a"
    a.process.send_signal(signal.SIGKILL)
    a.process.wait()
    begun = time.monotonic()
    again = nodes.admit(4_000, 700, generated_tokens=300, request_id="r", instead_of=held)
    assert 1.0 < time.monotonic() - begun < 6
    assert (again.node, again.lease.tokens) == ("b", 5_000)


def test_nodes_come_and_go_with_the_file(
    serve: Callable[..., Served], fleet_of: Callable[..., Any], tmp_path: Path
) -> None:
    a, b = serve(name="a"), serve(name="b")
    listed = tmp_path / "nodes"
    listed.write_text(f"a={a.target}\n")
    nodes = fleet_of(fleet.WatchedFile(listed, look_s=0.05))
    held = nodes.admit(100)
    listed.write_text(f"b={b.target}\n")
    until(lambda: states(nodes) == {"b": "live"})
    assert nodes.admit(100).node == "b"
    held.release()  # it was granted by a node that is no member any more
    assert leases(a) == []


def test_a_request_that_somebody_else_sends_counts_as_granted_where_its_node_has_spoken_since(
    serve: Callable[..., Served],
) -> None:
    node = serve()
    hashes = [bytes([page]) * 32 for page in range(64)]
    request = Request(prompt_tokens=4_096, prefix_hashes=hashes)

    def shared_and_left(nodes: fleet.Fleet) -> tuple[int, float]:
        (place,) = nodes.rank(4_096, prefix_hashes=hashes)
        return place.shared_pages, place.left

    with fleet.Fleet([node.target]) as nodes:
        nodes.wait_until_seen()
        untouched = shared_and_left(nodes)
        silent, heard = nodes.journey(request), nodes.journey(request)
        asked = silent.step()
        assert isinstance(asked, Ask)
        assert shared_and_left(nodes)[1] < untouched[1], "it is counted until something is known of it"
        silent.presumed(asked.known)
        assert shared_and_left(nodes) == untouched
        asked = heard.step()
        assert isinstance(asked, Ask)
        held = node.client().admit(4_096)
        until(lambda: nodes.nodes()[0].capacity.pool("host_pages").reserved)
        heard.presumed(asked.known)
        held.release()
        until(lambda: shared_and_left(nodes) == (64, untouched[1]))


def test_nodes_stay_while_their_directory_fails(
    serve: Callable[..., Served], fleet_of: Callable[..., Any], tmp_path: Path
) -> None:
    node, listed = serve(), tmp_path / "nodes"
    listed.write_text(f"a={node.target}\n")
    nodes = fleet_of(fleet.WatchedFile(listed, look_s=0.02))
    nodes.wait_until_seen()
    directory_says = nodes.failure if isinstance(nodes, fleet.Fleet) else nodes.fleet.failure
    assert directory_says is None
    for content, said in (("", "has become empty"), ("a junk line\n", "a junk line"), (None, "must be a file")):
        listed.unlink(missing_ok=True)
        if content is not None:
            listed.write_text(content)
        until(lambda said=said: said in str(nodes.failure if isinstance(nodes, fleet.Fleet) else nodes.fleet.failure))
        assert nodes.admit(100).node == "a"


def test_a_request_too_long_for_all_that_answer_says_so_beside_who_does_not(
    serve: Callable[..., Served], fleet_of: Callable[..., Any], tmp_path: Path
) -> None:
    node = serve()
    nodes = fleet_of([f"a={node.target}", f"b=unix:{tmp_path}/b.sock"])
    nodes.wait_until_seen()
    with pytest.raises(
        fleet.NoNodeAnswers,
        match=r"the node that could hold it does not answer \(it is too long for 1 more\): b: there",
    ):
        nodes.admit(1_000_000)


def test_a_cancelled_admit_leaves_nothing(serve: Callable[..., Served]) -> None:
    served = [serve(name=name) for name in "ab"]

    async def drive() -> int:
        cancelled = 0
        async with aio.Fleet([node.target for node in served]) as nodes:
            await nodes.wait_until_seen()
            for place in range(40):
                asked = asyncio.create_task(nodes.admit(100, request_id=f"r{place}"))
                await asyncio.sleep(place % 10 / 2_000)
                asked.cancel()
                try:
                    await (await asked).release()
                except asyncio.CancelledError:
                    cancelled += 1
            over = time.monotonic() + 10
            while [each.left for each in await nodes.rank(100)] != [0.75, 0.75]:  # nothing is held, nor held back
                assert time.monotonic() < over
                await asyncio.sleep(0.02)
        return cancelled

    assert asyncio.run(drive()) > 5
    until(lambda: leases(*served) == [])
