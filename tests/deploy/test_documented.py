"""The pages on metrics and probes name what a node exposes, all of it and nothing else."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.conftest import ROOT
from tests.deploy.test_gateways import families, page
from tests.serve.conftest import serve

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.serve.conftest import Served

__all__ = ["serve"]

METRICS = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
PROBES = (ROOT / "docs/integrations/kubernetes.md").read_text(encoding="utf-8")
ONLY_WITH_A_WINDOW = {"hisparse_window_tokens"}


def test_every_metric_is_described_with_its_labels_and_type(serve: Callable[..., Served]) -> None:
    series, types = families(page(serve("--http", "127.0.0.1:0")))
    rows = re.findall(r"^\| (`hisparse_.+?) \| (\w+) \|", METRICS, re.MULTILINE)
    described: dict[str, tuple[set[str], str]] = {}
    for names, kind in rows:
        for name, labels in re.findall(r"`(hisparse_\w+)(?:\{(.*?)\})?`", names):
            described[name] = (set(labels.split(",")) - {""}, kind)
    assert set(described) == set(types) | ONLY_WITH_A_WINDOW
    for family, kind in types.items():
        assert described[family][1] == kind, family
        if kind in {"gauge", "counter"}:
            assert described[family][0] == set(series[family][0][0]), family


def test_every_standing_has_a_line_in_the_table_of_probes(serve: Callable[..., Served]) -> None:
    series, _ = families(page(serve("--http", "127.0.0.1:0")))
    standings = {labels["standing"] for labels, _ in series["hisparse_standing"]}
    table = PROBES.split("## Probes")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == standings
    (row,) = re.findall(r"^\| `hisparse_standing.*$", METRICS, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row.split("|")[4])) == standings
