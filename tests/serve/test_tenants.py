"""What tenants may hold: settings of `serve`, refusals that name the tenant, and its part as `capacity` shows it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import hisparse_svc
import pytest
from hisparse_svc import InvalidInput, QuotaExceeded, config
from hisparse_svc.config import TenantPart

if TYPE_CHECKING:
    from pathlib import Path

WRITTEN = "search: seats=4..16, host_pages=..5000; *: seats=8"
READ = (
    TenantPart("search", "seats", 4, 16),
    TenantPart("search", "host_pages", 0, 5_000),
    TenantPart("*", "seats", 0, 8),
)


def test_tenants_read_alike_from_flag_variable_and_file(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('[tenants.search]\nseats = "4..16"\nhost_pages = "..5000"\n[tenants."*"]\nseats = 8\n')
    for settings in (
        config.load({"tenants": WRITTEN}, environment={}),
        config.load({}, environment={"HISPARSE_TENANTS": WRITTEN}),
        config.load({}, environment={}, file=os.fspath(file)),
    ):
        assert settings.tenants == READ


@pytest.mark.parametrize(
    "text", ["search", "search:", ": seats=4", "search: seats", "search: seats=x", "a: seats=-1.."]
)
def test_what_cannot_be_read_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        config.load({"tenants": text}, environment={})
    assert "seats=4..16" in str(refused.value)


@pytest.mark.parametrize("text", ["a: chairs=..4", "a: seats=4..2", "*: seats=1..", "a: seats=99999..; b: seats=1.."])
def test_what_no_node_can_keep_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        hisparse_svc.Node.embedded(backing="none", host_pool="1GiB", tenants=text)


def test_a_quota_binds_and_a_floor_is_kept_whoever_asks_first() -> None:
    settings = "search: seats=..2; batch: host_pages=..30; quiet: host_pages=100.., seats=1.."
    with hisparse_svc.Node.embedded(backing="none", host_pool="1GiB", tenants=settings) as node:
        client = node.client
        client.admit(pages=1, tenant="search")
        client.admit(pages=1, tenant="search")
        with pytest.raises(QuotaExceeded) as refused:
            client.admit(pages=1, tenant="search")
        assert (refused.value.tenant, refused.value.pool) == ("search", "seats")
        assert "tenant search" in str(refused.value)
        with pytest.raises(hisparse_svc.NeverFits):
            client.admit(pages=31, tenant="batch")
        total = client.get_capacity().pool("host_pages").total
        with pytest.raises(hisparse_svc.HiSparseError):
            client.admit(pages=total - 2 - 99, tenant="greedy")
        client.admit(pages=total - 2 - 100, tenant="greedy")
        quotas = {quota.pool: quota for quota in client.get_capacity(tenant="quiet").quotas}
        assert (quotas["host_pages"].floor, quotas["host_pages"].ceiling, quotas["host_pages"].used) == (100, None, 0)
        assert quotas["indexer_tokens"].floor == 6_400
        client.admit(pages=100, tenant="quiet")
        assert client.get_capacity().quotas == ()
