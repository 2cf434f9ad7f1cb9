"""The commands that talk to a service, as scripts and people see them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hisparse_svc import InvalidInput, Node, _core
from hisparse_svc.cli import output

from tests.conftest import run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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


def test_capacity_of_a_tenant_says_what_it_may_hold(serve: Callable[..., Served]) -> None:
    served = serve("--tenants", "search: seats=1..2")
    document = served.cli("capacity", "--tenant", "search", "--json").document
    seats = next(quota for quota in document["quotas"] if quota["pool"] == "seats")
    assert (seats["floor"], seats["ceiling"], seats["used"]) == (1, 2, 0)
    told = served.cli("capacity", "--tenant", "search").out
    assert "kept for it" in told
    assert "kept for it" not in served.cli("capacity").out


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
        ("capacity", ["--length", "0"], "--length"),
        ("capacity", ["--length", "8K"], "--length"),
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


def test_a_refusal_as_json_has_what_programs_go_by_as_fields(node: Served) -> None:
    never = node.cli("admit", "--prompt-tokens", "1000000", "--json").document["problems"][0]
    assert (never["reason"], never["retry_after_s"], never["limit_value"] > 0) == ("NEVER_FITS", None, True)
    assert never["limit"]
    held = node.cli("admit", "--pages", "300", "--json").document["lease"]["id"]
    busy = node.cli("admit", "--pages", "100", "--json").document["problems"][0]
    assert (busy["reason"], busy["pool"], busy["limit"]) == ("POOL_BUSY", "host_pages", None)
    assert busy["retry_after_s"] > 0
    node.cli("release", held)


@pytest.mark.parametrize("name", ["[bold]b[/bold]", "[/nonsense]", "\u202etxt.exe", "back\\"])
def test_names_of_other_callers_reach_the_terminal_as_text(node: Served, name: str) -> None:
    with node.client().admit(64, request_id=name):
        printed = [node.cli("leases"), node.cli("admit", "--prompt-tokens", "64", "--request-id", name)]
    for told in printed:
        assert told.code == 0, told.err
        assert "\u202e" not in told.out
        assert "".join(output.plain(name).split()) in "".join(told.out.split()), told.out


def test_json_is_escaped_where_terminals_would_obey_it(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    names = ["\x1b[31m", "\x9b31m", "\u202eexe", "\x7f", "\u061c", "\u200b", "\ufeff", "\U000e0041", "\udc80", "ü"]
    output.emit_json(names)
    printed = capfdbinary.readouterr().out.decode()
    assert json.loads(printed) == names
    assert [letter for letter in printed if not letter.isprintable() and letter != "\n"] == []
    assert "ü" in printed


def test_text_of_other_callers_is_escaped() -> None:
    assert output.plain("a\x1b[31m\x9b\u202eb\r") == "a\\x1b[31m\\x9b\\u202eb\\r"
    assert output.shown("[bold]") == "\\[bold]"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("admit", "--prompt-tokens is missing"),
        ("admit --pages 1 --ttl 0", '--ttl is "0"'),
        ("admit --pages 1 --ttl 1e12", "above 0 to 1,000,000,000"),
        ("admit --pages 1 --wait 1e300", "from 0 to 1,000,000,000"),
        ("capacity --timeout 0", "from 0.001 to 1,000,000,000"),
        ("serve --max-requests 0 --backing none", "--max-requests is 0"),
    ],
)
def test_what_no_service_could_take_is_refused_before_one_is_asked(tmp_path: Path, flags: str, told: str) -> None:
    command, *rest = flags.split()
    where = ("--socket", f"{tmp_path}/s", "--http", "off") if command == "serve" else ("--target", f"unix:{tmp_path}/s")
    refused = run(command, *rest, *where)
    assert (refused.code, told in refused.err) == (2, True), refused.err


@pytest.mark.parametrize("command", ["capacity", "leases", "drain", "watch", "admit --pages 1", "replay sample"])
def test_a_misspelt_variable_is_named_by_every_command_that_asks_a_service(tmp_path: Path, command: str) -> None:
    target = f"unix:{tmp_path}/s"
    told = run(*command.split(), "--target", target, env={"HISPARSE_TARGT": target})
    assert (told.code, "did you mean HISPARSE_TARGET?" in told.err) == (2, True), told.err
    there = run(*command.split(), "--target", target, env={"HISPARSE_CACHE_DIR": str(tmp_path)})
    assert there.code == 3, there.err


def test_the_ready_line_names_a_relative_socket_by_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Node.embedded(host_pool="1GiB", backing="none", socket="here.sock") as node:
        assert node.addresses == [f"unix:{tmp_path}/here.sock"]


def test_a_replay_without_engines_says_why_it_finds_no_prefix(node: Served) -> None:
    told = node.cli("replay", "sample", "--limit", "20")
    assert "only engines publish pages to a service" in told.out, told.out + told.err
    assert "only engines publish" not in run("replay", "sample", "--limit", "20").out


def test_each_lease_is_one_line_that_holds_its_whole_id_also_through_a_pipe(node: Served) -> None:
    held = [node.client().admit(64, request_id="r" * 100), node.client().admit(64), node.client().admit(64)]
    lines = node.cli("leases").out.splitlines()
    assert len(lines) == 1 + len(held)
    for lease, line in zip((each.lease for each in held), lines[1:], strict=True):
        assert line.split()[:2] == [lease.id, lease.request_id]


def test_everything_wrong_with_a_service_comes_back_together(tmp_path: Path) -> None:
    plan = _core.plan({"kv_bytes": "80GiB", "host_pool": "1GiB"}, _core.Model.preset("glm-5.2"))
    wrong: dict[str, Any] = {"numa": "moon", "pages": "wide", "access": "nobody", "log": "loud", "stop_grace_s": -1.0}
    with pytest.raises(InvalidInput) as refused:
        _core.Service.start(plan, socket=str(tmp_path / "s"), limits={"max_calls": 0}, threads=0, **wrong)
    fields = {problem.field for problem in refused.value.problems}
    assert fields == {"--numa", "--pages", "access", "--log", "stop_grace_s", "max_calls", "threads"}
    assert not (tmp_path / "s").exists()
