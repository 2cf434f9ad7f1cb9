"""Calls to an API server: the token as it is renewed, and what each kind of answer becomes."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from hisparse_svc.kube.api import Api, Away, Rejected

client = pytest.importorskip("kubernetes.client", reason="no Kubernetes client: run make setup")

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Server:
    """Answers every call with what the test put in, and keeps the last one."""

    def __init__(self) -> None:
        self.code, self.headers, self.body = 200, dict[str, str](), b"{}"
        self.seen: dict[str, Any] = {}
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                server.seen = {"path": self.path, "headers": dict(self.headers), "body": self.rfile.read(length)}
                self.send_response(server.code)
                for name, value in server.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(server.body)))
                self.end_headers()
                self.wfile.write(server.body)

            do_PATCH = do_GET  # noqa: N815 - the name that the base class looks for

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.server.shutdown()
    made.thread.join()
    made.server.server_close()


@pytest.fixture
def api(server: Server) -> Iterator[Api]:
    made = Api(client.Configuration(host=server.url))
    yield made
    made.close()


def test_an_apply_is_a_patch_of_named_fields_under_the_managers_name(server: Server, api: Api) -> None:
    assert api.apply("/apis/x", {"kind": "X"}, manager="hisparse-publish") == {}
    assert server.seen["path"] == "/apis/x?fieldManager=hisparse-publish&force=true"
    assert server.seen["headers"]["Content-Type"] == "application/apply-patch+yaml"
    assert json.loads(server.seen["body"]) == {"kind": "X"}


def test_a_list_comes_with_the_servers_own_time(server: Server, api: Api) -> None:
    server.body = b'{"items": []}'
    found, told = api.get("/apis/x", {"limit": 500})
    assert found == {"items": []}
    assert told is not None
    assert told.utcoffset() is not None


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            (403, {}, b'{"reason": "Forbidden", "message": "may  not\\n at all"}'),
            (403, "Forbidden", "may not at all", None),
        ),
        (
            (429, {"Retry-After": "7"}, b'{"reason": "TooManyRequests"}'),
            (429, "TooManyRequests", '{"reason": "Too', 7.0),
        ),
        ((503, {"Retry-After": "soon"}, b"no backend"), (503, "Service Unavailable", "no backend", None)),
        ((500, {}, b""), (500, "Internal Server Error", "", None)),
        ((502, {}, b"[1]"), (502, "Bad Gateway", "[1]", None)),
        ((200, {}, b"<html>a proxy</html>"), (502, "NotJson", "<html>a proxy</html>", None)),
    ],
)
def test_a_refusal_says_what_the_server_said(
    server: Server, api: Api, answer: tuple[int, dict[str, str], bytes], expected: tuple[Any, ...]
) -> None:
    server.code, server.headers, server.body = answer
    with pytest.raises(Rejected) as refused:
        api.get("/apis/x", {})
    failure = refused.value
    assert (failure.status, failure.reason, failure.retry_after_s) == (expected[0], expected[1], expected[3])
    assert failure.text.startswith(expected[2])


def test_a_message_without_end_is_cut(server: Server, api: Api) -> None:
    server.code, server.body = 500, b"x" * 100_000
    with pytest.raises(Rejected) as refused:
        api.get("/apis/x", {})
    assert len(str(refused.value)) < 600


def test_nobody_there_is_away(server: Server) -> None:
    api = Api(client.Configuration(host="http://127.0.0.1:9"))
    with pytest.raises(Away, match="look whether it is up and let through"):
        api.apply("/apis/x", {}, manager="m")
    assert server.seen == {}


def test_a_pods_token_is_read_again_as_the_kubelet_renews_it(server: Server, tmp_path: Path) -> None:
    incluster = pytest.importorskip("kubernetes.config.incluster_config")
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("first")
    authority.write_text("an authority")
    where = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
    configuration = client.Configuration()
    loader = incluster.InClusterConfigLoader(str(token), str(authority), environ=where)
    loader._token_refresh_period *= 0
    loader.load_and_set(configuration)
    loader.host = configuration.host = server.url
    api = Api(configuration)
    for written in ("first", "second"):
        token.write_text(written)
        api.get("/apis/x", {})
        assert server.seen["headers"]["authorization"].lower() == f"bearer {written}"
    for broken in ("", None):
        token.write_text("") if broken == "" else token.unlink()
        with pytest.raises(Rejected, match="401 NoCredentials: they cannot be read"):
            api.get("/apis/x", {})
    api.close()
