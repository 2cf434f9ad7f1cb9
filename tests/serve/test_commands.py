"""The commands that talk to a service, as scripts and people see them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.conftest import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.serve.conftest import Served

POOL = {"name", "numa_node", "total", "free", "reserved", "committed", "evictable", "scrubbing", "quarantined"}


def test_capacity_as_json_is_the_response_message_with_numbers(node: Served) -> None:
    told = node.cli("capacity", "--length", "640", "--length", "4096", "--json")
    document = told.document
    assert told.code == 0
    assert {"epoch", "sequence", "observed_at", "pools", "largest_grant_tokens", "max_request_tokens", "fits"} <= set(
        document
    )
    pools = {pool["name"]: pool for pool in document["pools"]}
    assert set(pools) >= {"host_pages", "seats", "indexer_tokens", "request_slots"}
    assert set(pools["host_pages"]) == POOL
    assert pools["host_pages"]["total"] == 310
    assert [fit["tokens"] for fit in document["fits"]] == [640, 4096]


def test_a_lease_goes_from_admit_over_leases_to_release(node: Served) -> None:
    granted = node.cli(
        "admit", "--prompt-tokens", "4096", "--request-id", "r-1", "--tenant", "t", "--ttl", "60", "--json"
    )
    lease = granted.document["lease"]
    assert (lease["pages"], lease["state"], lease["tenant"]) == (64, "LEASE_STATE_RESERVED", "t")
    assert granted.document["capacity"]["pools"][0]["reserved"] == 64
    listed = node.cli("leases", "--json").document
    assert [held["id"] for held in listed["leases"]] == [lease["id"]]
    assert node.cli("leases", "--tenant", "nobody", "--json").document == {"leases": []}
    assert lease["id"] in node.cli("leases").out
    first = node.cli("release", lease["id"], "--tenant", "t", "--json")
    again = node.cli("release", lease["id"], "--tenant", "t", "--json")
    assert (first.code, again.code) == (0, 0)
    assert (first.document["already_released"], again.document["already_released"]) == (False, True)
    assert node.cli("leases").out == "no live leases\n"


def test_people_see_the_lease_and_the_pools(node: Served) -> None:
    told = node.cli("admit", "--prompt-tokens", "4096")
    assert told.out.startswith("granted lease ")
    assert "4,096 tokens in 64 pages" in told.out
    assert "host_pages" in told.out
    would = node.cli("admit", "--prompt-tokens", "4096", "--validate-only")
    assert would.out == "would be granted: 64 pages, 0 shared\n"


def test_a_refusal_as_json_carries_the_word_that_programs_go_by(node: Served) -> None:
    told = node.cli("admit", "--prompt-tokens", "1000000", "--json")
    problem = told.document["problems"][0]
    assert (told.code, problem["value"]) == (4, "NEVER_FITS")
    assert problem["remedy"]
    held = node.cli("admit", "--pages", "300", "--json").document["lease"]["id"]
    busy = node.cli("admit", "--pages", "100", "--json").document["problems"][0]
    assert (busy["field"], busy["value"]) == ("host_pages", "POOL_BUSY")
    node.cli("release", held)


def test_watch_prints_one_document_a_line_until_its_count(node: Served) -> None:
    told = node.cli("watch", "--count", "1", "--length", "640", "--json")
    first = json.loads(told.out.splitlines()[0])
    assert (told.code, "snapshot" in first, first["fits"][0]["tokens"]) == (0, True, 640)


def test_the_target_may_come_from_the_environment(node: Served) -> None:
    assert run("capacity", env={"HISPARSE_TARGET": node.target}).code == 0
    assert run("capacity", env={"HISPARSE_TARGET": "nonsense"}).code == 2


@pytest.mark.parametrize(
    ("command", "flags", "field"),
    [
        ("release", [], "LEASE_ID"),
        ("release", ["l-1", "--request-id", "r-1"], "LEASE_ID"),
        ("release", ["no such id"], "lease_id"),
        ("admit", ["--prompt-tokens", "many"], "prompt_tokens"),
        ("admit", ["--prompt-tokens", "1", "--wait", "-1"], "--wait"),
        ("admit", ["--prompt-tokens", "1", "--ttl", "inf"], "--ttl"),
        ("admit", ["--prompt-tokens", "1", "--priority", "101"], "priority"),
        ("admit", ["--prompt-tokens", "1", "--pages", "1"], "pages"),
        ("capacity", ["--length", "0"], "lengths"),
        ("capacity", ["--timeout", "soon"], "--timeout"),
        ("watch", ["--count", "0"], "--count"),
    ],
)
def test_a_wrong_argument_is_named(node: Served, command: str, flags: list[str], field: str) -> None:
    told = node.cli(command, *flags, "--json")
    assert told.code == 2, told.err
    assert told.document["problems"][0]["field"].startswith(field)


def test_the_ready_line_as_json_is_one_document(serve: Callable[..., Served]) -> None:
    served = serve("--json", name="json")
    assert served.ready == "{\n"
    assert served.client().server_info().model == "glm-5.2"


def test_more_seats_than_fit_are_refused(serve: Callable[..., Served]) -> None:
    del serve
    told = run("serve", "--seats", "1000", "--http", "off", "--socket", "/nonexistent/s")
    assert (told.code, told.errors[0].split()[0]) == (2, "--seats")
