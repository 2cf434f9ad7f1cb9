"""`serve` and `plan` with the same figures: the same pools, whatever the model and the length that they are for."""

from __future__ import annotations

from typing import Any

import hisparse_svc
import pytest
from hisparse_svc import InvalidInput, NeverFits, Node, config, node
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import run

GLM_ON_H200 = {"model": "glm-5.2", "gpu": "h200", "tp": 8, "host_pool": "264GiB", "hot_rows": 2_176}
"""The first worked example of docs/planning.md."""


def planned(model: str, **figures: Any) -> hisparse_svc.Plan | None:
    """What `plan` finds for these figures; `None` where nothing fits, or not one request of the context."""
    try:
        plan = hisparse_svc.plan(model, **figures)
    except InvalidInput:
        return None
    return plan if "context" not in figures or plan.concurrency[0].hisparse else None


def served(model: str, **figures: Any) -> hisparse_svc.Plan | None:
    """What `serve` plans for them; `None` where it does not start."""
    try:
        return node.check(config.load({"model": model, "backing": "none", "http": "off", **figures}, environment={}))
    except InvalidInput:
        return None


@settings(deadline=None)
@given(
    st.sampled_from(sorted(preset.name for preset in hisparse_svc.models())),
    st.integers(1, 160).map(lambda gib: gib << 30),
    st.integers(1, 1_024).map(lambda gib: gib << 30),
    st.none() | st.integers(1, 1 << 21),
    st.none() | st.integers(1, 512).map(lambda pages: pages * 64),
)
def test_serve_finds_what_plan_finds(
    model: str, kv_bytes: int, host_pool: int, context: int | None, hot_rows: int | None
) -> None:
    given = {"kv_bytes": kv_bytes, "host_pool": host_pool, "context": context, "hot_rows": hot_rows}
    figures = {name: value for name, value in given.items() if value is not None}
    assert served(model, **figures) == planned(model, **figures)


@pytest.mark.parametrize("context", [None, 65_536, 131_072])
@pytest.mark.parametrize("model", ["glm-5.2", "deepseek-v3.2", "deepseek-v4-flash", "minimax-m3"])
def test_a_running_node_has_the_pools_that_plan_finds(model: str, context: int | None) -> None:
    figures: dict[str, Any] = {"kv_bytes": "40GiB", "host_pool": "120GiB"}
    if context is not None:
        figures["context"] = context
    plan = hisparse_svc.plan(model, **figures)
    with Node.embedded(model=model, backing="none", **figures) as running:
        capacity = running.client.get_capacity()
    assert capacity.pool("host_pages").total == plan.logical_tokens // plan.page_tokens
    assert capacity.pool("seats").total == plan.seats
    assert capacity.max_request_tokens == plan.max_request_tokens


def test_a_shorter_context_buys_the_seats_that_the_planning_guide_promises() -> None:
    longest, shorter = served(**GLM_ON_H200), served(**GLM_ON_H200, context=131_072)
    assert longest is not None
    assert shorter is not None
    assert (longest.seats, shorter.seats) == (39, 40)


def test_a_request_beyond_the_context_is_taken_while_it_fits() -> None:
    with Node.embedded(backing="none", host_pool="4GiB", context=8_192) as running:
        client = running.client
        most = client.get_capacity().largest_grant_tokens
        assert most > 8_192
        with client.admit(most) as held:
            assert held.lease.pages * 64 >= most
        with pytest.raises(NeverFits):
            client.admit(client.get_capacity().max_request_tokens + 1)


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        (("--context", "0"), "from 1 to"),
        (("--context", "128K"), "must be a whole number"),
        (("--context", "131072"), "longer than any request that runs here: 19839 tokens"),
        (("--context", "1048577", "--host-pool", "160GiB"), "1048576, which is the model's own"),
        (("--context", "8192", "--ratio", "4"), "beside --ratio"),
    ],
)
def test_a_context_that_cannot_be_sized_for_is_refused(flags: tuple[str, ...], rule: str) -> None:
    told = run("serve", "--http", "off", "--socket", "/nonexistent/s", *flags)
    assert (told.code, told.errors[0].split()[0]) == (2, "--context"), told.err
    assert rule in told.errors[0]


def test_the_context_has_a_variable_and_a_key_too(tmp_path: Any) -> None:
    file = tmp_path / "serve.toml"
    file.write_text("context = 65536\n")
    assert config.load({}, {}, file).context == 65_536
    assert config.load({}, {"HISPARSE_CONTEXT": "131072"}, file).context == 131_072
    assert config.load({"context": "8192"}, {"HISPARSE_CONTEXT": "131072"}, file).context == 8_192
