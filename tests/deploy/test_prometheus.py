"""A real Prometheus scrapes a service under replay: every panel and alert has data, and an alert fires and clears."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import hisparse_svc
import pytest
from hisparse_svc.engine import HostPool, SwapInUsage

from tests.conftest import ROOT, run
from tests.deploy.prometheus import Prometheus, free_port, need, until
from tests.serve.conftest import Served, start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

yaml = pytest.importorskip("yaml", reason="no PyYAML: run make setup")

RULES = ROOT / "deploy/alerts/hisparse.rules.yml"
UNIT_TESTS = ROOT / "deploy/alerts/hisparse.rules.test.yml"
DASHBOARDS = sorted((ROOT / "deploy/dashboards").glob("*.json"))
TRACE = "0af7651916cd43dd8448eb211c80319c"
NODE = ("--backing", "memory", "--host-pool", "256MiB", "--exemplars")


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def panels() -> list[tuple[str, str]]:
    """Title and expression of every query of every panel, with Grafana's variables filled in."""
    found = []
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            for target in panel.get("targets", []):
                expression = target["expr"].replace("$__rate_interval", "10s").replace("$instance", ".*")
                assert "$" not in expression, f"a variable that the test does not know: {expression}"
                found.append((panel["title"], expression))
    return found


def compared(rule: dict[str, Any]) -> str:
    """What an alert compares with its threshold."""
    match = re.fullmatch(r"(.+) [<>] [0-9.]+", rule["expr"])
    assert match, f"{rule['alert']} is not QUANTITY > NUMBER: {rule['expr']}"
    return match[1]


class Scene:
    """A service, and a Prometheus that looks at it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{free_port()}"
        self.node = self.serve()
        self.prometheus = Prometheus.start(folder, self.address, RULES.read_text(encoding="utf-8"))

    def serve(self) -> Served:
        return start(self.folder / "node.sock", *NODE, "--http", self.address)

    def kill(self) -> None:
        self.node.process.kill()
        self.node.process.wait(timeout=20)
        close(self.node)

    def page(self) -> str:
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=5) as answer:
            return str(answer.read().decode())


def close(node: Served) -> None:
    for pipe in (node.process.stdout, node.process.stderr):
        assert pipe is not None
        pipe.close()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    need("prometheus")
    made = Scene(tmp_path_factory.mktemp("prometheus"))
    try:
        with HostPool.attach(made.node.target) as engine, made.node.client() as client:
            for _ in range(3):
                groups = [SwapInUsage(g, 90, 10, 6_560) for g in range(len(engine.groups()))]
                engine.report_usage(swap_in=groups, exposed_s=0.001, steps=5)
                with hisparse_svc.traced(f"00-{TRACE}-b7ad6b7169203331-01"):
                    client.admit(128).release()
                time.sleep(0.7)
            done = run("replay", "sample", "--limit", "60", "--target", made.node.target, "--json")
            assert done.code == 0, done.err
            replayed = done.document
            assert replayed["admitted"] > 0, replayed
            until(lambda: bool(made.prometheus.query("hisparse:admit_seconds:p99_5m")), "rules were evaluated")
            yield made
    finally:
        made.prometheus.stop()
        made.node.end()
        close(made.node)


def test_every_panel_of_every_dashboard_has_data(scene: Scene) -> None:
    asked = panels()
    assert len(asked) >= 20
    empty = [f"{title}: {expression}" for title, expression in asked if not scene.prometheus.query(expression)]
    assert not empty


def test_every_alert_compares_something_that_there_is(scene: Scene) -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    empty = [rule["alert"] for rule in alerts if not scene.prometheus.query(compared(rule))]
    assert not empty


def test_every_recorded_quantity_has_data(scene: Scene) -> None:
    empty = [rule["record"] for rule in rules() if "record" in rule and not scene.prometheus.query(rule["record"])]
    assert not empty


def test_every_metric_that_is_named_is_in_the_exposition(scene: Scene) -> None:
    page = scene.page()
    exposed = {line.split("{")[0].split(" ")[0] for line in page.splitlines() if not line.startswith("#")}
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    texts = [expression for _, expression in panels()] + [rule["expr"] for rule in rules()]
    named = {name for text in texts for name in re.findall(r"hisparse[a-z0-9_:]+", text)}
    assert len(named) > 20
    # `job="hisparse"` names no metric, and `[a-z0-9_:]+` needs a letter more.
    assert named - recorded - exposed == set()


def test_a_trace_of_a_caller_is_an_exemplar_that_prometheus_keeps(scene: Scene) -> None:
    now = time.time()
    found = scene.prometheus.ask(
        "query_exemplars", query="hisparse_admit_seconds_bucket", start=f"{now - 300}", end=f"{now + 10}"
    )
    traces = {exemplar["labels"]["trace_id"] for series in found for exemplar in series["exemplars"]}
    assert traces == {TRACE}


def test_an_alert_fires_when_the_service_is_killed_and_clears_when_it_is_back(scene: Scene) -> None:
    assert "HisparseDown" not in scene.prometheus.firing()
    scene.kill()
    for probe in ("healthz", "readyz"):
        with pytest.raises(urllib.error.URLError, match="refused"):
            urllib.request.urlopen(f"http://{scene.address}/{probe}", timeout=5)
    until(lambda: "HisparseDown" in scene.prometheus.firing(), "HisparseDown fires")
    scene.node = scene.serve()
    until(lambda: "HisparseDown" not in scene.prometheus.firing(), "HisparseDown clears")
    assert scene.prometheus.query('up{job="hisparse"} == 1')


def test_the_rules_pass_promtool_and_each_alert_has_a_test_in_which_it_fires_and_one_in_which_it_is_silent() -> None:
    promtool = need("promtool")
    for arguments in (["check", "rules", RULES.name], ["test", "rules", UNIT_TESTS.name]):
        done = subprocess.run([promtool, *arguments], cwd=RULES.parent, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    tested = {test["name"] for test in yaml.safe_load(UNIT_TESTS.read_text(encoding="utf-8"))["tests"]}
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    assert tested == {f"{alert} {how}" for alert in alerts for how in ("fires", "is silent")}


def test_the_exposition_passes_promtool(scene: Scene) -> None:
    done = subprocess.run(
        [need("promtool"), "check", "metrics"], input=scene.page(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_says_what_to_do() -> None:
    for rule in rules():
        if "alert" in rule:
            told = rule["annotations"]
            assert told["summary"], rule["alert"]
            assert len(told["description"]) > 30, rule["alert"]
            assert rule["labels"]["severity"] in {"critical", "warning", "info"}
