"""Our own service conforms, with and without memory, over a socket and a port; and the suite is a good guest."""

from __future__ import annotations

import contextlib
import json
import os
import random
import threading
import time
from typing import TYPE_CHECKING
from xml.etree import ElementTree as Xml

import pytest
from hisparse_svc import PoolBusy, conformance

from tests.conftest import run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.serve.conftest import Served

FEWEST_CASES = 150


def test_a_node_that_counts_pages_conforms(ledger_only: Served) -> None:
    report = conformance.run(ledger_only.target, destructive=True)
    assert report.failures() == {}
    assert report.counts()["passed"] >= FEWEST_CASES


def test_a_node_that_owns_its_pages_conforms(with_memory: Served) -> None:
    report = conformance.run(with_memory.target, destructive=True)
    assert report.failures() == {}
    assert report.counts()["passed"] >= FEWEST_CASES


def test_a_port_conforms(with_memory: Served) -> None:
    with with_memory.client() as client:
        port = next(address for address in client.server_info().addresses if address.startswith("127."))
    report = conformance.run(port, only=["admit.*", "watch_capacity.a_watch_begins*", "reflection.*", "publish.*"])
    assert report.failures() == {}


def test_a_node_in_use_is_left_as_it_is(ledger_only: Served) -> None:
    with ledger_only.client() as client, client.admit(prompt_tokens=64) as held:
        held.commit()
        before = client.get_capacity()
        report = conformance.run(ledger_only.target)
        assert report.failures() == {}
        skipped = {result.name: result.message for result in report.results if result.outcome == "skipped"}
        assert "admit_full.a_full_pool_is_busy" in skipped
        assert "--destructive" in skipped["drain.nothing_new_is_granted"]
        after = client.get_capacity()
        assert after.pools == before.pools
        assert [lease.id for lease in client.list_leases()] == [held.lease.id]


def test_a_router_is_tried_as_far_as_its_role_goes(serve: Callable[..., Served]) -> None:
    served = serve("--access", f"uid:{os.getuid()}=router@team-a")
    report = conformance.run(served.target, destructive=True, tenant="team-a", only=["admit.*", "dump.*", "drain.*"])
    assert report.failures() == {}
    outcomes = {result.name: result.outcome for result in report.results}
    assert outcomes["admit.the_same_request_is_granted_once"] == "passed"
    assert outcomes["admit.a_request_id_is_a_tenants_own"] == "skipped"
    assert outcomes["dump.every_lease_is_in_it_with_its_extents"] == "skipped"
    assert outcomes["drain.nothing_new_is_granted"] == "skipped"


def test_a_tenant_in_use_is_not_run_under(ledger_only: Served) -> None:
    with ledger_only.client() as client, client.admit(64, tenant="team-a") as held:
        told = run("conformance", ledger_only.target, "--tenant", "team-a")
        assert (told.code, "--tenant" in told.err) == (2, True)
        assert not held.release().already_released


def test_a_node_whose_tenants_have_quotas_conforms(serve: Callable[..., Served]) -> None:
    served = serve("--tenants", "search: seats=1..2; *: seats=..2")
    report = conformance.run(served.target, destructive=True)
    assert report.failures() == {}
    skipped = {result.name: result.message for result in report.results if result.outcome == "skipped"}
    assert "quota" in skipped["admit.no_two_leases_share_a_page"]
    assert report.counts()["passed"] >= FEWEST_CASES


@pytest.mark.parametrize("tenants", ["team-a: seats=1..2", "*: host_pages=..20; team-a: seats=1..2"])
def test_a_small_node_that_keeps_room_for_a_tenant_conforms(serve: Callable[..., Served], tenants: str) -> None:
    served = serve("--tenants", tenants)
    report = conformance.run(served.target, destructive=True)
    assert report.failures() == {}


def test_a_node_under_load_is_never_called_faulty(serve: Callable[..., Served]) -> None:
    served = serve("--host-pool", "16GiB", "--kv-bytes", "20GiB")
    over = threading.Event()

    def others() -> None:
        chance, client = random.Random(7), served.client()  # noqa: S311 - chance that replays
        while not over.is_set():
            with contextlib.suppress(PoolBusy), client.admit(chance.randint(1, 3_000), tenant="others") as held:
                held.commit()
                time.sleep(chance.random() * 0.02)
            time.sleep(chance.random() * 0.1)

    load = threading.Thread(target=others)
    load.start()
    try:
        report = conformance.run(served.target, only=["admit*", "release.*", "commit.*", "get_capacity.*", "dump.*"])
    finally:
        over.set()
        load.join()
    assert report.failures() == {}
    assert report.counts()["passed"] >= 50


def test_a_service_that_dies_is_told_once_with_the_case_it_died_in(serve: Callable[..., Served]) -> None:
    served = serve()

    def kill(result: conformance.Result) -> None:
        if result.name == "commit.a_ttl_is_kept_to":
            served.process.kill()
            served.process.wait()

    report = conformance.run(served.target, only=["commit.*", "extend.*"], told=kill)
    outcomes = [result.outcome for result in report.results]
    assert (outcomes.count("failed"), outcomes.count("skipped")) == (1, 0)
    assert {each.message for each in report.results if each.outcome == "error"} == {
        "the service went away in commit.a_ttl_has_its_bounds"
    }


def test_the_command_reports_as_json_and_junit(ledger_only: Served, tmp_path: Path) -> None:
    files = ("--out", str(tmp_path / "r.json"), "--junit", str(tmp_path / "r.xml"))
    told = run("conformance", ledger_only.target, "--only", "release.*", *files, "--json")
    assert (told.code, told.err) == (0, "")
    assert told.document["conforms"]
    assert {case["outcome"] for case in told.document["cases"]} == {"passed"}
    assert json.loads((tmp_path / "r.json").read_text(encoding="utf-8")) == told.document
    suite = Xml.parse(tmp_path / "r.xml").getroot()  # noqa: S314 - written by us just now
    assert suite.get("tests") == str(len(told.document["cases"]))
    assert {case.get("classname") for case in suite} == {"hisparse.v1.release"}


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["unix:/nowhere/h.sock"], 3, "no service to test"),
        (["unix:/nowhere/h.sock", "--only", "nothing.*"], 2, "matches no case"),
        (["nowhere"], 2, "write unix:PATH or HOST:PORT"),
        (["127.0.0.1:1", "--cert", "/nowhere"], 2, "--key is missing"),
        (["127.0.0.1:1", "--ca", "/nowhere", "--cert", "/nowhere", "--key", "/nowhere"], 2, "/nowhere"),
    ],
)
def test_what_cannot_be_run_is_said(arguments: list[str], code: int, word: str) -> None:
    told = run("conformance", *arguments)
    assert (told.code, word in told.err) == (code, True), told.err


def test_cases_are_listed_with_what_they_show() -> None:
    listed = run("conformance", "--list", "--json").document["cases"]
    assert [case["name"] for case in listed] == list(conformance.CASES)
    assert {case["rule"] for case in listed} == set(conformance.RULES)
    assert "admit.the_same_request_is_granted_once" in run("conformance", "--list").out
