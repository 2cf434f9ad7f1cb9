"""HisparseNodes as a fleet's members, against a small server that speaks as the API does and breaks where told to."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hisparse_svc import NotAllowed
from hisparse_svc.fleet import KubernetesNodes
from hisparse_svc.kube.api import Api, Away
from hisparse_svc.rpc.refusals import Unreachable

from tests.fleet.test_roster import lease, node

if TYPE_CHECKING:
    from collections.abc import Iterator

client = pytest.importorskip("kubernetes.client", reason="no Kubernetes client: run make setup")

BREAK = object()
"""Put in as an event: the connection ends in the middle."""


class Server:
    """Lists what it has, in pages of two, and tells watches what is put in."""

    def __init__(self) -> None:
        self.items: dict[str, list[dict[str, Any]]] = {"hisparsenodes": [], "leases": []}
        # Made here: of two that two threads make as they first ask, one would be lost, with the watch that waits at it.
        self.events: dict[str, Queue[Any]] = {kind: Queue() for kind in self.items}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.refuses: dict[str, int] = {}
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                kind, query = (
                    parts.path.rpartition("/")[2],
                    {key: all_[0] for key, all_ in parse_qs(parts.query).items()},
                )
                server.asked.append((kind, query))
                code = server.refuses.get(kind, 200)
                if code != 200:
                    self.answer(code, {"kind": "Status", "code": code, "reason": "Refused", "message": "told to"})
                elif "watch" in query:
                    self.stream(server.events[kind])
                else:
                    self.answer(200, server.page(kind, query))

            def answer(self, code: int, document: dict[str, Any]) -> None:
                body = json.dumps(document).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def stream(self, events: Queue[Any]) -> None:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                while (event := events.get()) is not None:
                    if event is BREAK:
                        self.close_connection = True
                        return
                    line = json.dumps(event).encode() + b"\n"
                    for half in (line[: len(line) // 2], line[len(line) // 2 :]):  # a document need not come whole
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(half), half))
                self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def page(self, kind: str, query: dict[str, str]) -> dict[str, Any]:
        start = int(query.get("continue", "0"))
        more = {"continue": str(start + 2)} if start + 2 < len(self.items[kind]) else {}
        return {"metadata": {"resourceVersion": "5", **more}, "items": self.items[kind][start : start + 2]}

    def api(self) -> Api:
        return Api(client.Configuration(host=f"http://127.0.0.1:{self.server.server_address[1]}"))

    def tell(self, kind: str, word: str, document: dict[str, Any], version: str) -> None:
        metadata = {**document.get("metadata", {}), "resourceVersion": version}
        self.events[kind].put({"type": word, "object": {**document, "metadata": metadata}})

    def watched_from(self, kind: str) -> list[str]:
        return [query["resourceVersion"] for asked, query in self.asked if asked == kind and "watch" in query]

    def lists(self, kind: str) -> int:
        return sum(asked == kind and "watch" not in query for asked, query in self.asked)


@pytest.fixture
def server() -> Iterator[Server]:
    served = Server()
    served.items = {"hisparsenodes": [node("a"), node("bb")], "leases": [lease("a"), lease("bb")]}
    yield served
    for events in served.events.values():
        events.put(None)
    served.server.shutdown()
    served.thread.join()
    served.server.server_close()


def names(members: Any) -> list[str]:
    return [member.name for member in members]


def until(true: Any, longest_s: float = 5.0) -> None:
    over = time.monotonic() + longest_s
    while not true():
        assert time.monotonic() < over
        time.sleep(0.01)


def test_nodes_are_listed_in_pages_and_then_watched(server: Server) -> None:
    server.items["hisparsenodes"].append(node("ccc", "Draining"))
    closing = threading.Event()
    following = KubernetesNodes("serving", api=server.api()).follow(closing)
    members = next(following)
    assert [(member.name, member.target) for member in members] == [
        ("a", "a.serving:7411"),
        ("bb", "bb.serving:7411"),
        ("ccc", "ccc.serving:7411"),
    ]
    assert [member.hint and member.hint.stale for member in members] == [False, False, True]
    assert members[0].hint is not None
    assert members[0].hint.capacity is not None
    assert members[0].hint.capacity.pool("seats").free == 40
    assert server.lists("hisparsenodes") == 2
    server.tell("hisparsenodes", "ADDED", node("dddd"), "6")
    assert names(next(following)) == ["a", "bb", "dddd", "ccc"], "of the stale ones those that grant come first"
    server.tell("hisparsenodes", "DELETED", node("dddd"), "7")
    assert names(next(following)) == ["a", "bb", "ccc"]
    server.tell("leases", "ADDED", lease("ccc"), "8")
    assert [member.hint and member.hint.stale for member in next(following)] == 3 * [False], "vouched for now"
    closing.set()
    assert list(following) == []
    assert all(query["labelSelector"] == "hisparse.io/node=true" for kind, query in server.asked if kind == "leases")
    assert all("labelSelector" not in query for kind, query in server.asked if kind == "hisparsenodes")


def test_hints_alone_are_told_at_most_once_a_second(server: Server) -> None:
    following = KubernetesNodes("serving", api=server.api()).follow(threading.Event())
    next(following)
    began = time.monotonic()
    for count in range(200):
        server.tell("hisparsenodes", "MODIFIED", node("a", pages=count), str(10 + count))
    told = next(following)
    assert 0.5 < time.monotonic() - began < 4.0
    seen = {member.name: member.hint for member in told}["a"]
    assert seen is not None
    assert seen.capacity is not None
    assert seen.capacity.pool("host_pages").free == 199, "all of them together"
    following.close()  # type: ignore[attr-defined]


def test_a_watch_that_ends_goes_on_from_the_last_bookmark_without_a_list(server: Server) -> None:
    following = KubernetesNodes("serving", api=server.api()).follow(threading.Event())
    next(following)
    server.tell("hisparsenodes", "BOOKMARK", {}, "40")
    server.events["hisparsenodes"].put(None)
    server.tell("hisparsenodes", "ADDED", node("ccc"), "41")
    assert names(next(following)) == ["a", "bb", "ccc"]
    assert server.watched_from("hisparsenodes") == ["5", "40"]
    assert server.lists("hisparsenodes") == 1
    following.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["as an event", "as an answer"])
def test_a_version_that_is_too_old_is_listed_anew(server: Server, how: str) -> None:
    following = KubernetesNodes("serving", api=server.api()).follow(threading.Event())
    next(following)
    until(lambda: server.watched_from("hisparsenodes"))
    server.items["hisparsenodes"] = [node("a"), node("eeeee")]
    server.tell("leases", "DELETED", lease("bb"), "6")
    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    if how == "as an event":
        server.events["hisparsenodes"].put({"type": "ERROR", "object": gone})
    else:
        server.refuses["hisparsenodes"] = 410
        server.events["hisparsenodes"].put(None)
        until(lambda: len(server.watched_from("hisparsenodes")) > 1)
        server.refuses.clear()
    server.events["hisparsenodes"].put(None)
    assert next(told for told in map(names, following) if told != ["a", "bb"]) == ["a", "eeeee"]
    following.close()  # type: ignore[attr-defined]


def test_after_a_broken_connection_it_goes_on_from_what_was_taken_in(server: Server) -> None:
    directory = KubernetesNodes("serving", api=server.api())
    following = directory.follow(threading.Event())
    next(following)
    server.tell("hisparsenodes", "ADDED", node("ccc"), "6")
    assert names(next(following)) == ["a", "bb", "ccc"]
    server.events["hisparsenodes"].put(BREAK)
    with pytest.raises(Away, match="does not answer"):
        next(following)
    again = directory.follow(threading.Event())
    assert names(next(again)) == ["a", "bb", "ccc"], "told at once, so that the fleet knows that it is followed again"
    assert server.watched_from("hisparsenodes") == ["5", "6"]
    assert (server.lists("hisparsenodes"), server.lists("leases")) == (1, 1)
    again.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kind", "code", "error", "remedy"),
    [
        ("hisparsenodes", 403, NotAllowed, "bind the Role hisparse-node-reader to this account"),
        ("leases", 401, NotAllowed, "look whether the token or certificate is this cluster's"),
        ("hisparsenodes", 404, Unreachable, "apply deploy/kubernetes/cluster"),
        ("hisparsenodes", 429, Unreachable, "look at the API server"),
        ("leases", 503, Unreachable, "look at the API server"),
    ],
)
def test_each_refusal_says_what_to_do(
    server: Server, kind: str, code: int, error: type[Exception], remedy: str
) -> None:
    server.refuses[kind] = code
    with pytest.raises(error, match=remedy) as refused:
        next(KubernetesNodes("serving", api=server.api()).follow(threading.Event()))
    assert f"of the namespace serving cannot be read: {code} Refused: told to" in str(refused.value)


def test_nobody_there_is_said(server: Server) -> None:
    api = Api(client.Configuration(host="http://127.0.0.1:9"))
    with pytest.raises(Unreachable, match=r"http://127\.0\.0\.1:9 does not answer.*look whether it is up"):
        next(KubernetesNodes("serving", api=api).follow(threading.Event()))
    assert server.asked == []


def test_no_thread_is_left_behind(server: Server) -> None:
    following = KubernetesNodes("serving", api=server.api()).follow(threading.Event())
    next(following)
    following.close()  # type: ignore[attr-defined]
    until(lambda: not [each for each in threading.enumerate() if each.name.startswith("hisparse-fleet-")])
