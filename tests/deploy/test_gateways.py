"""What gateways of other projects demand of a page of metrics, and what we tell them to read from ours."""

from __future__ import annotations

import re
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import ROOT
from tests.serve.conftest import serve

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.serve.conftest import Served

yaml = pytest.importorskip("yaml", reason="no PyYAML: run make setup")

__all__ = ["serve"]

Labels = dict[str, str]
Series = list[tuple[Labels, float]]

LLM_D = (ROOT / "docs/integrations/llm-d.md").read_text(encoding="utf-8")
SERIES = re.compile(r"([a-zA-Z_][a-zA-Z0-9_]*)(?:\{(.*)\})? (\S+)")


def labels_of(text: str | None) -> Labels:
    return dict(re.findall(r'([a-zA-Z_]+)="([^"]*)"', text or ""))


def page(node: Served) -> str:
    (address,) = re.findall(r"http://[\d.:]+", node.ready)
    with urllib.request.urlopen(f"{address}/metrics", timeout=5) as answer:
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        return str(answer.read().decode())


def families(text: str) -> tuple[dict[str, Series], dict[str, str]]:
    """Series by name, and the type of each family."""
    series: dict[str, Series] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = SERIES.fullmatch(line)
            assert match, line
            series.setdefault(match[1], []).append((labels_of(match[2]), float(match[3])))
    return series, dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))


def configuration() -> dict[str, Any]:
    block = re.search(r"```yaml\n(.*?)```", LLM_D, re.DOTALL)
    assert block
    return dict(yaml.safe_load(block[1]))


def specs() -> dict[str, str]:
    """What the page of llm-d tells it to read: what for, and the selector."""
    (extractor,) = [each for each in configuration()["plugins"] if each["type"] == "core-metrics-extractor"]
    (engine,) = extractor["parameters"]["engineConfigs"]
    found = {name: text for name, text in engine.items() if name.endswith("Spec")}
    return found | {each["attributeKey"]: each["metricSpec"] for each in engine["customMetrics"]}


def selected(spec: str, series: dict[str, Series]) -> Series:
    """As llm-d's extractor: the name, and labels that are equal; a series may have more."""
    match = re.fullmatch(r"(\w+)(?:\{(.*)\})?", spec)
    assert match, spec
    wanted = labels_of(match[2])
    return [(labels, value) for labels, value in series.get(match[1], []) if wanted.items() <= labels.items()]


def test_llm_d_finds_each_figure_once_and_it_is_what_the_node_says(serve: Callable[..., Served]) -> None:
    node = serve("--http", "127.0.0.1:0")
    client = node.client()
    held = client.admit(6_400)
    held.commit()
    seen = client.get_capacity()
    series, types = families(page(node))
    found = {}
    for name, spec in specs().items():
        chosen = selected(spec, series)
        assert len(chosen) == 1, f"{name}: {spec} selects {chosen}"
        assert types[re.split(r"\{", spec)[0]] in {"gauge", "counter"}, spec
        found[name] = chosen[0][1]
    pages, seats = seen.pool("host_pages"), seen.pool("seats")
    shares = [1 - (pool.free + pool.evictable) / pool.total for pool in seen.pools if pool.total]
    assert found == {
        "queuedRequestsSpec": 0,
        "runningRequestsSpec": 1,
        "kvUsageSpec": pytest.approx(max(shares)),
        "cacheBlockSizeSpec": 64,
        "cacheNumBlocksSpec": pages.total,
        "hisparse.largest_grant_tokens": seen.largest_grant_tokens,
        "hisparse.free_seats": seats.free,
    }
    held.release()


def test_llm_ds_configuration_names_only_plugins_that_it_declares() -> None:
    document = configuration()
    declared = {each.get("name", each["type"]) for each in document["plugins"]}
    used = {each["pluginRef"] for profile in document["schedulingProfiles"] for each in profile["plugins"]}
    for source in document["dataLayer"]["sources"]:
        used |= {source["pluginRef"], *(each["pluginRef"] for each in source["extractors"])}
    assert used == declared
    (scorer,) = [each for each in document["plugins"] if each["type"] == "endpoint-attribute-scorer"]
    assert scorer["parameters"]["attributeKey"] in specs()


def test_sglangs_gateway_can_merge_the_pages_of_any_two_nodes(serve: Callable[..., Served]) -> None:
    nodes = [
        serve("--http", "127.0.0.1:0", name="counts"),
        serve("--http", "127.0.0.1:0", "--backing", "memory", "--host-pool", "256MiB", "--exemplars", name="owns"),
    ]
    names: dict[str, set[frozenset[str]]] = {}
    for node in nodes:
        series, types = families(page(node))
        for name, all_of_it in series.items():
            family = re.sub(r"_(bucket|sum|count)$", "", name)
            assert types.get(family, types.get(name)), f"{name} has no type"
            assert ":" not in name
            for labels, _ in all_of_it:
                names.setdefault(name, set()).add(frozenset(labels))
    assert len(names) > 30
    assert {name: kinds for name, kinds in names.items() if len(kinds) != 1} == {}
