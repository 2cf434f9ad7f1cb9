"""A Prometheus of the test's own: told what to scrape and which rules to follow, and asked what it has seen.

::

    service ── scraped twice a second ──► Prometheus ── query, alerts, exemplars ──► test
                                              ▲ rules of deploy/alerts, their minutes made seconds
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CONFIG = """
global: {{scrape_interval: 500ms, scrape_timeout: 400ms, evaluation_interval: 500ms}}
rule_files: [{rules}]
scrape_configs:
  - job_name: hisparse
    static_configs: [{{targets: ["{target}"]}}]
"""


def need(tool: str) -> str:
    """Where a tool is, or a skip that says how to get it."""
    found = shutil.which(tool)
    if found is None:
        pytest.skip(f"no {tool} on this machine: run deploy/install-tools")
    return found


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def in_seconds(rules: str) -> str:
    """Rules whose windows and delays are seconds, so that a test sees in seconds what an operator sees in minutes."""
    rules = re.sub(r"\[\d+m\]", "[10s]", rules)
    return re.sub(r"for: \d+[mh]", "for: 1s", rules)


@dataclass
class Prometheus:
    """A running one."""

    process: subprocess.Popen[bytes]
    url: str

    @staticmethod
    def start(folder: Path, target: str, rules: str) -> Prometheus:
        program = need("prometheus")
        (folder / "hisparse.rules.yml").write_text(in_seconds(rules), encoding="utf-8")
        config = folder / "prometheus.yml"
        config.write_text(CONFIG.format(rules=folder / "hisparse.rules.yml", target=target), encoding="utf-8")
        port = free_port()
        arguments = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
        arguments += [f"--web.listen-address=127.0.0.1:{port}", "--enable-feature=exemplar-storage"]
        with (folder / "prometheus.log").open("wb") as log:
            process = subprocess.Popen([program, *arguments], stdout=log, stderr=log)
        started = Prometheus(process, f"http://127.0.0.1:{port}")
        try:
            until(started.ready, "Prometheus is ready", longest_s=30)
        except BaseException:
            started.stop()
            raise
        return started

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=20)

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def ask(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=10) as answer:
            document = json.load(answer)
        assert document["status"] == "success", document
        return document["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        return list(self.ask("query", query=expression)["result"])

    def firing(self) -> set[str]:
        alerts = self.ask("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


def until(condition: Callable[[], bool], what: str, longest_s: float = 20.0) -> None:
    """Wait for something, and say what was waited for if it does not come."""
    end = time.monotonic() + longest_s
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"not within {longest_s:g} s: {what}")
        time.sleep(0.1)
