"""Settings of `serve`: flag beats variable beats file, and an unknown name is an error that names the nearest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hisparse_svc import config
from hisparse_svc.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path


def test_a_flag_beats_a_variable_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('host_pool = "3GiB"\nhot_rows = 2112\nseats = 3\n')
    variables = {"HISPARSE_HOT_ROWS": "4096", "HISPARSE_SEATS": "5", "HISPARSE_CONFIG": str(file), "PATH": "/bin"}
    chosen = config.load({"seats": 7, "model": None}, variables)
    assert (chosen.seats, chosen.hot_rows, chosen.host_pool_bytes) == (7, 4096, 3 << 30)
    assert (chosen.model, chosen.kv_dtype, chosen.http) == ("glm-5.2", "fp8_e4m3", "127.0.0.1:7412")


@pytest.mark.parametrize("seconds", ["-1", "0", "3601", "x"])
def test_a_reclaim_window_has_one_rule(seconds: str) -> None:
    with pytest.raises(InvalidInput, match=r"must be a whole number of seconds, 1 to 3600"):
        config.load({"reclaim_window": seconds}, {})


def test_a_socket_that_would_break_the_ready_line_is_refused() -> None:
    with pytest.raises(InvalidInput, match="printable"):
        config.load({"socket": "a\nready: b"}, {})


def test_the_host_pool_is_1_gib_unless_a_ratio_is_given() -> None:
    assert config.load({}, {}).host_pool_bytes == 1 << 30
    assert config.load({"ratio": "4"}, {}).host_pool_bytes is None


def test_every_wrong_thing_is_named_with_where_it_came_from(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('hostpool = "3GiB"\nbacking = "memroy"\n')
    variables = {"HISPARSE_HOTROWS": "1", "HISPARSE_MLOCK": "perhaps"}
    with pytest.raises(InvalidInput) as raised:
        config.load({"seats": "many"}, variables, file)
    told = {problem.field: problem.remedy for problem in raised.value.problems}
    assert told == {
        f"hostpool in {file}": "did you mean host_pool?",
        "HISPARSE_HOTROWS": "did you mean HISPARSE_HOT_ROWS?",
        f"backing in {file}": "use memory",
        "HISPARSE_MLOCK": "write true or false",
        "--seats": "write digits only",
    }


@pytest.mark.parametrize(
    "variable",
    [
        "HISPARSE_PORT",
        "HISPARSE_SERVICE_HOST",
        "HISPARSE_SERVICE_PORT_GRPC",
        "HISPARSE_PORT_7411_TCP_ADDR",
        "HISPARSE_TARGET",
    ],
)
def test_what_kubernetes_sets_for_a_service_of_our_name_is_let_be(variable: str) -> None:
    config.load({}, {variable: "tcp://10.0.0.1:7411"})


def test_settings_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(InvalidInput) as raised:
        config.load({"host_pool": "1GiB", "gpu": "h200"}, {"HISPARSE_RATIO": "4", "HISPARSE_KV_BYTES": "20GiB"})
    assert [problem.field for problem in raised.value.problems] == ["HISPARSE_RATIO", "HISPARSE_KV_BYTES"]


@pytest.mark.parametrize("text", ["= 3", "\xff"])
def test_a_file_that_is_no_toml_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "serve.toml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidInput, match="--config"):
        config.load({}, {}, file)
    with pytest.raises(InvalidInput, match="must be a file that exists"):
        config.load({}, {}, tmp_path / "none.toml")


def test_a_list_given_several_times_adds_up() -> None:
    flags = {
        "access": ("uid:0=admin", "uid:1=router, cert:x=engine"),
        "allow_uid": ("1000", "1001,1002"),
        "tenants": ("a: seats=..1", "b: seats=..2; c: seats=3"),
    }
    chosen = config.load(flags, {})
    assert chosen.access == "uid:0=admin, uid:1=router, cert:x=engine"
    assert chosen.allow_uid == (1000, 1001, 1002)
    assert [(part.tenant, part.ceiling) for part in chosen.tenants] == [("a", 1), ("b", 2), ("c", 3)]


@pytest.mark.parametrize(
    ("tenants", "named"),
    [
        (("a: seats=..1", "a: seats=..9"), "seats of tenant a"),
        ("a: seats=..1; a: seats=..9", "seats of tenant a"),
        ("a: seats=..1, seats=..9", "seats of tenant a"),
    ],
)
def test_a_quota_said_twice_is_refused_and_none_of_them_hidden(tenants: object, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        config.load({"tenants": tenants}, {})


def test_two_pools_of_one_tenant_may_be_said_apart() -> None:
    chosen = config.load({"tenants": ("a: seats=..1", "a: host_pages=..9")}, {})
    assert [(part.tenant, part.pool, part.ceiling) for part in chosen.tenants] == [
        ("a", "seats", 1),
        ("a", "host_pages", 9),
    ]
