"""EndpointSlices as a fleet's members, from a small server that speaks as the API does; tests/kube has the real one."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest
from hisparse_svc import NotAllowed, fleet
from hisparse_svc.kube import api as kube

if TYPE_CHECKING:
    from collections.abc import Iterator

client = pytest.importorskip("kubernetes.client", reason="no Kubernetes client: pip install 'hisparse-svc[kubernetes]'")


def endpoint_slice(name: str, *pods: tuple[str, str, bool | None]) -> dict[str, Any]:
    """A slice as the API sends it."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "addressType": "IPv4",
        "metadata": {"name": name, "namespace": "serving", "resourceVersion": "7"},
        "ports": [{"name": "http", "port": 7412}, {"name": "grpc", "port": 7411}],
        "endpoints": [
            {
                "addresses": [address],
                "conditions": {} if ready is None else {"ready": ready},
                "targetRef": {"kind": "Pod", "name": pod},
            }
            for pod, address, ready in pods
        ],
    }


class Api:
    """Lists what it has, and watches what is put in."""

    def __init__(self) -> None:
        self.slices: list[dict[str, Any]] = []
        self.events: Queue[dict[str, Any] | None] = Queue()
        self.asked: list[str] = []
        self.refuses = 0
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                api.asked.append(self.path)
                if api.refuses:
                    self.send_error(api.refuses)
                    return
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                if "watch=true" not in self.path.lower():
                    listed = {"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", "items": api.slices}
                    self.chunk(json.dumps({**listed, "metadata": {"resourceVersion": "7"}}).encode())
                else:
                    while (event := api.events.get()) is not None:
                        self.chunk(json.dumps(event).encode() + b"\n")
                self.chunk(b"")

            def chunk(self, data: bytes) -> None:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def called(self) -> kube.Api:
        return kube.Api(client.Configuration(host=f"http://127.0.0.1:{self.server.server_address[1]}"))


@pytest.fixture
def api() -> Iterator[Api]:
    served = Api()
    yield served
    served.events.put(None)
    served.server.shutdown()
    served.thread.join()
    served.server.server_close()


def test_ready_endpoints_are_members_and_changes_are_watched(api: Api) -> None:
    api.slices = [
        endpoint_slice("a", ("decode-0", "10.0.0.1", True), ("decode-1", "10.0.0.2", False)),
        endpoint_slice("b", ("decode-2", "fd00::3", None)),
    ]
    closing = threading.Event()
    directory = fleet.EndpointSlices("decode", "serving", port="grpc", api=api.called())
    following = directory.follow(closing)
    assert [(member.name, member.target) for member in next(following)] == [
        ("decode-0", "10.0.0.1:7411"),
        ("decode-2", "[fd00::3]:7411"),
    ]
    changed = endpoint_slice("a", ("decode-0", "10.0.0.1", False), ("decode-1", "10.0.0.2", True))
    api.events.put({"type": "MODIFIED", "object": changed})
    assert [member.name for member in next(following)] == ["decode-1", "decode-2"]
    api.events.put({"type": "DELETED", "object": endpoint_slice("b")})
    assert [member.name for member in next(following)] == ["decode-1"]
    closing.set()
    api.events.put(None)
    assert list(following) == []
    assert all("labelSelector=kubernetes.io/service-name=decode" in unquote(path) for path in api.asked)


def test_a_watch_from_a_version_that_is_too_old_lists_again(api: Api) -> None:
    api.slices = [endpoint_slice("a", ("decode-0", "10.0.0.1", True))]
    following = fleet.EndpointSlices("decode", "serving", port=7411, api=api.called()).follow(threading.Event())
    assert [member.name for member in next(following)] == ["decode-0"]
    api.slices = [endpoint_slice("a", ("decode-9", "10.0.0.9", True))]
    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    for event in ({"type": "ERROR", "object": gone}, None):
        api.events.put(event)
    assert [member.name for member in next(following)] == ["decode-9"]


def test_an_account_that_may_not_list_says_what_it_needs(api: Api) -> None:
    api.refuses = 403
    following = fleet.EndpointSlices("decode", "serving", api=api.called()).follow(threading.Event())
    with pytest.raises(NotAllowed, match="let the account list and watch endpointslices"):
        next(following)
