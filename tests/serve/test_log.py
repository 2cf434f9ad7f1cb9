"""The log as its readers get it: JSON on stderr, a line per call, and nothing of what a prompt says."""

from __future__ import annotations

import json
import resource
from typing import TYPE_CHECKING, Any

import hisparse_svc
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.serve.conftest import Served

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PREFIX = bytes(range(32))


def lines(node: Served) -> list[dict[str, Any]]:
    """All that was logged, once the server has ended."""
    assert node.end() == 0
    assert node.process.stderr is not None
    return [json.loads(line) for line in node.process.stderr.read().splitlines()]


def test_each_call_is_a_line_with_its_request_lease_and_trace(serve: Callable[..., Served]) -> None:
    node = serve("--log", "json")
    client = node.client()
    with hisparse_svc.traced(f"00-{TRACE}-{SPAN}-01"):
        held = client.admit(4_000, 96, request_id="chat-1", tenant="search")
    held.commit()
    held.release()
    client.get_capacity()
    with pytest.raises(hisparse_svc.NeverFits):
        client.admit(10_000_000, request_id="huge")
    asked = [
        hisparse_svc.Request(prompt_tokens=64, request_id="small"),
        hisparse_svc.Request(prompt_tokens=10_000_000, request_id="large"),
    ]
    client.batch_admit(asked, partial=True)
    log = lines(node)

    calls = [line for line in log if line["event"] == "call"]
    told = [(line["call"], line["code"], line.get("reason", ""), line.get("request_id")) for line in calls]
    assert told == [
        ("Admit", "OK", "", "chat-1"),
        ("Commit", "OK", "", "chat-1"),
        ("Release", "OK", "", None),
        ("Admit", "FAILED_PRECONDITION", "NEVER_FITS", "huge"),
        ("BatchAdmit", "OK", "", "small"),
        ("BatchAdmit", "FAILED_PRECONDITION", "NEVER_FITS", "large"),
    ]
    admitted, committed, released = calls[:3]
    assert (admitted["trace_id"], admitted["span_id"]) == (TRACE, SPAN)
    assert (admitted["tenant"], admitted["tokens"]) == ("search", 4_096)
    assert admitted["lease_id"] == committed["lease_id"] == released["lease_id"] == held.lease.id
    assert "trace_id" not in committed
    assert all(line["took_us"] >= 0 and line["peer"].startswith("uid ") for line in calls)
    standings = [line["standing"] for line in log if line["event"] == "standing"]
    assert (standings[0], standings[-1]) == ("granting", "stopping")


def test_a_full_disk_ends_the_journal_and_is_one_line_that_says_what_to_do(serve: Callable[..., Served]) -> None:
    node = serve("--log", "json")
    client = node.client()
    client.admit(64)
    journal = node.socket.with_name("node.sock.journal")
    full = journal.stat().st_size
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (full, full))
    for _ in range(3):
        client.admit(64).release()
    assert not journal.exists(), "a restart must not believe it"
    (note,) = client.server_info().notes
    told = [line for line in lines(node) if line["level"] == "error"]
    assert [(line["event"], line["message"]) for line in told] == [("notice", note)]
    assert "cannot be written" in note
    assert "make room" in note


def test_no_line_holds_what_a_prompt_says(serve: Callable[..., Served]) -> None:
    node = serve("--log", "json")
    node.client().admit(4_000, prefix_hashes=[PREFIX]).release()
    log = json.dumps(lines(node))
    assert '"Admit"' in log
    for shown in (PREFIX.hex(), PREFIX.decode("latin-1"), "prefix"):
        assert shown not in log


def test_without_the_setting_stderr_is_for_people(serve: Callable[..., Served]) -> None:
    node = serve()
    node.client().admit(64).release()
    assert node.end() == 0
    assert node.process.stderr is not None
    assert node.process.stderr.read() == ""


def test_a_name_that_turns_the_direction_of_text_is_escaped_in_the_log(serve: Callable[..., Served]) -> None:
    node = serve("--log", "json")
    name = "\u202etxt.exe\u200b\u061c größe"
    with node.client().admit(64, request_id=name, tenant="\u2066a"):
        pass
    assert node.end() == 0
    assert node.process.stderr is not None
    text = node.process.stderr.read()
    assert [letter for letter in text if not letter.isprintable() and letter != "\n"] == []
    assert "größe" in text
    admitted = next(line for line in map(json.loads, text.splitlines()) if line.get("call") == "Admit")
    assert (admitted["request_id"], admitted["tenant"]) == (name, "\u2066a")
