"""`hisparse-svc publish` before there is a cluster: what it needs, and what it says where that is missing."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest
from hisparse_svc import InvalidInput, _core
from hisparse_svc.cli.fleet import LENGTHS
from hisparse_svc.kube import api
from hisparse_svc.kube.telling import Teller, serve_metrics

from tests.conftest import run

if TYPE_CHECKING:
    from pathlib import Path

NOWHERE = {"KUBECONFIG": "/nonexistent/config", "HOME": "/nonexistent"}
HERE = ("--name", "a", "--namespace", "serving", "--address", "10.0.0.7:7411")


def test_every_mistake_of_a_command_line_is_answered_at_once(tmp_path: Path) -> None:
    pytest.importorskip("kubernetes.client", reason="no Kubernetes client: run make setup")
    flags = ("--refresh", "1", "--lease", "nonsense", "--log", "xml", "--length", "0", "--target", f"unix:{tmp_path}/a")
    told = run("publish", *flags, "--address", "nowhere", env=NOWHERE)
    assert told.code == 2
    fields = [error.partition(" is ")[0] for error in told.errors]
    expected = ["--refresh", "--lease", "--length", "--log", "--namespace", "--name", "--address", "cluster"]
    assert fields == expected


def test_lengths_are_never_cut_to_what_a_node_answers() -> None:
    pytest.importorskip("kubernetes.client", reason="no Kubernetes client: run make setup")
    most = _core.MAX_LENGTHS_ASKED
    flags = [flag for length in range(1, most - 1) for flag in ("--length", str(length))]
    told = run("publish", "--target", "unix:/tmp/a", *HERE, *flags, env=NOWHERE)
    rule = f"must be at most {most} with the 3 that are always told, 8192, 32768, 131072"
    assert told.code == 2
    assert told.errors[0] == f"--length is {most + 1} lengths: {rule}; ask about fewer"
    fewer = run("publish", "--target", "unix:/tmp/a", *HERE, *flags[2:], env=NOWHERE)
    assert "--length" not in fewer.err
    known = [flag for length in LENGTHS for flag in ("--length", str(length))]
    assert "--length" not in run("publish", "--target", "unix:/tmp/a", *HERE, *flags[2:], *known, env=NOWHERE).err


@pytest.mark.parametrize(
    "command", [("publish", "--target", "unix:/tmp/a", *HERE), ("fleet", "--target", "kubernetes-nodes:serving")]
)
def test_without_a_cluster_it_says_how_to_name_one(command: tuple[str, ...]) -> None:
    pytest.importorskip("kubernetes.client", reason="no Kubernetes client: run make setup")
    told = run(*command, env=NOWHERE)
    assert told.code == 2
    assert "no cluster is configured" in told.errors[-1]
    assert told.errors[-1].endswith("run it in a pod, or set KUBECONFIG")


@pytest.mark.parametrize("text", ["not: [yaml", "- 1", "clusters: 3\n"])
def test_a_kubeconfig_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    pytest.importorskip("kubernetes.client", reason="no Kubernetes client: run make setup")
    path = tmp_path / "config"
    path.write_text(text)
    told = run("fleet", "--target", "kubernetes-nodes:serving", env={**NOWHERE, "KUBECONFIG": str(path)})
    assert told.code == 2
    assert f"the file {path}" in told.errors[0]


def test_without_the_client_it_says_which_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "kubernetes.client", None)
    with pytest.raises(InvalidInput) as refused:
        api.Api()
    (problem,) = refused.value.problems
    assert problem.remedy == "pip install 'hisparse-svc[kubernetes]'"


def test_a_namespace_that_is_none_is_refused_before_anything_is_asked() -> None:
    told = run("fleet", "--target", "kubernetes-nodes:Serving/decode", env=NOWHERE)
    assert (told.code, len(told.errors)) == (2, 1)
    assert "must be kubernetes-nodes:NAMESPACE; write kubernetes-nodes:serving" in told.errors[0]


def test_metrics_are_served_where_that_is_asked_for() -> None:
    teller = Teller(lambda _: None, as_json=False)
    teller.wrote("node", 0)
    with serve_metrics("127.0.0.1:0", teller) as where:
        with urllib.request.urlopen(f"http://{where}/metrics", timeout=5) as answer:
            assert b'hisparse_publish_writes_total{object="node",result="done"} 1' in answer.read()
        with urllib.request.urlopen(f"http://{where}/healthz", timeout=5) as answer:
            assert answer.read() == b"ok\n"
        teller.looked_at -= 61
        with pytest.raises(urllib.error.HTTPError, match="503") as hung:
            urllib.request.urlopen(f"http://{where}/healthz", timeout=5)
        hung.value.close()
        with pytest.raises(urllib.error.HTTPError) as missing:
            urllib.request.urlopen(f"http://{where}/else", timeout=5)
        missing.value.close()
        with pytest.raises(InvalidInput, match="cannot be listened on"), serve_metrics(where, teller):
            pass
    with serve_metrics(None, teller) as nowhere:
        assert nowhere == ""
    with pytest.raises(InvalidInput, match="must be HOST:PORT, or off"), serve_metrics("here", teller):
        pass
