"""Viewers of the page: who may look, how many, and what one costs that reads nothing."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from hisparse_svc import Client
from hisparse_svc.rpc import calls

from tests.page.conftest import page_of
from tests.page.test_leases import fill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.serve.conftest import Served

    Get = Callable[..., http.client.HTTPResponse]

MOST_VIEWERS = 16
LOST_AFTER_S = 10
GROWTH_KIB = 8 << 10
PARTS = ("/", "/page/app.js", "/page/base.css", "/page/icon.svg")


@pytest.fixture
def get() -> Iterator[Callable[..., http.client.HTTPResponse]]:
    """Asks the HTTP port of a node; every answer is closed when the test is over."""
    with contextlib.ExitStack() as opened:

        def ask(served: Served, path: str, **headers: str) -> http.client.HTTPResponse:
            address = urlsplit(page_of(served)).netloc
            connection = opened.enter_context(contextlib.closing(http.client.HTTPConnection(address, timeout=15)))
            connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            return opened.enter_context(contextlib.closing(connection.getresponse()))

        yield ask


def events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    """The events of a stream, each with its document."""
    name = ""
    for line in answer:
        word, _, rest = line.decode().rstrip("\n").partition(": ")
        if word == "event":
            name = rest
        elif word == "data":
            yield name, json.loads(rest)


def rss_kib(served: Served) -> int:
    """Memory of the service that is its own."""
    status = Path(f"/proc/{served.process.pid}/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1])


def silent_viewer(served: Served) -> socket.socket:
    """A viewer that was let in, and reads nothing of what it is shown."""
    host, port = urlsplit(page_of(served)).netloc.split(":")
    viewer = socket.socket()
    viewer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    viewer.settimeout(15)
    viewer.connect((host, int(port)))
    viewer.sendall(b"GET /page/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert viewer.recv(15) == b"HTTP/1.1 200 OK"
    return viewer


def keys(document: Any) -> Any:
    """The shape of a document: the names in it."""
    if isinstance(document, dict):
        return {name: keys(value) for name, value in document.items()}
    return [keys(document[0])] if isinstance(document, list) and document else None


def test_events_are_the_message_of_get_overview(large: Served, get: Get) -> None:
    fill(large, 100)
    stream = events(get(large, "/page/events"))
    told = dict((next(stream), next(stream)))
    with Client(large.target) as client:
        call = calls.overview()
        asked = call.read(client.send(call))
    whole = told["node"] | {name: told["pool"][name] for name in ("map", "leases", "leases_total")}
    assert keys(whole) == keys(asked)
    moving = {"uptime", "observed_at", "age", "expires_in"}

    def still(document: Any) -> Any:
        if isinstance(document, dict):
            return {name: still(value) for name, value in document.items() if name not in moving}
        return [still(value) for value in document] if isinstance(document, list) else document

    assert still(whole) == still(asked)


def test_nothing_that_is_shown_names_a_tenant_or_a_request(large: Served, get: Get) -> None:
    with large.client().admit(prompt_tokens=6_400, request_id="a-request-of-theirs", tenant="a-tenant-of-ours"):
        stream = events(get(large, "/page/events"))
        shown = json.dumps([next(stream), next(stream)])
        pictured = large.cli("top", "--once").out + large.cli("top", "--json").out
    assert "6400" in shown
    assert "6,400" in pictured
    for name in ("a-request-of-theirs", "a-tenant-of-ours"):
        assert name not in shown + pictured


def test_the_page_says_what_it_may_do_and_loads_nothing_from_elsewhere(large: Served, get: Get) -> None:
    for path in PARTS:
        answer = get(large, path)
        assert answer.status == 200, path
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_another_name_and_another_site_get_nothing(large: Served, get: Get) -> None:
    for path in (*PARTS, "/page/events"):
        assert get(large, path, Host="evil.example").status == 403
        assert get(large, path, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors").status == 403
    assert get(large, "/metrics", Host="node.example").status == 200, "scrapers come under any name"


def test_an_access_list_without_loopback_closes_the_page_and_not_the_probes(
    serve: Callable[..., Served], get: Get
) -> None:
    served = serve("--http", "127.0.0.1:0", "--access", "uid:0=admin")
    assert get(served, "/").status == 403
    assert get(served, "/healthz").status == 200


@pytest.mark.timeout(120)
def test_viewers_that_read_nothing_do_not_grow_the_service_and_lose_their_places(
    serve: Callable[..., Served], get: Get
) -> None:
    served = serve(
        "--host-pool", "256GiB", "--kv-bytes", "120GiB", "--hot-rows", "2048", "--max-requests", "1200",
        "--http", "127.0.0.1:0",
    )  # fmt: skip
    fill(served, 1_000)
    client = served.client()
    viewers = [silent_viewer(served) for _ in range(MOST_VIEWERS)]
    refused = get(served, "/page/events")
    assert (refused.status, refused.headers["retry-after"]) == (503, "5")
    assert str(MOST_VIEWERS) in refused.read().decode()
    assert get(served, "/healthz").status == 200
    before, seen, begun = rss_kib(served), [], time.monotonic()
    while (waited := time.monotonic() - begun) < LOST_AFTER_S + 20:
        with client.admit(prompt_tokens=64):  # so that there is always something new
            seen.append(rss_kib(served))
        if waited > LOST_AFTER_S and get(served, "/page/events").status == 200:
            break
        time.sleep(0.2)
    else:
        pytest.fail(f"no place was free again after {waited:.0f} s")
    assert max(seen) - before < GROWTH_KIB, f"{before} KiB before, then {seen}"
    for viewer in viewers:
        viewer.close()
