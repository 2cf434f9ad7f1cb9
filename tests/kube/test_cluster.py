"""What the other tests rest on: the API server is up, judges strictly, and an account may do what its rules say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

api = pytest.importorskip("kubernetes.client", reason="no Kubernetes client: run make setup")

if TYPE_CHECKING:
    from tests.kube.cluster import Cluster

READS = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}
NOTE = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "note"}, "data": {"a": "b"}}


def test_server_and_kubectl_are_of_the_version_that_is_pinned(kube: Cluster) -> None:
    told = json.loads(kube.kubectl("version", "--output=json").out)
    assert told["serverVersion"]["gitVersion"] == told["clientVersion"]["gitVersion"]
    assert told["serverVersion"]["gitVersion"].startswith("v1.37.")


def test_an_account_may_do_what_its_rules_say_and_nothing_else(kube: Cluster, namespace: str) -> None:
    assert kube.apply(NOTE, namespace=namespace).code == 0
    reader, nobody = kube.account(namespace, "reader", [READS]), kube.account(namespace, "nobody")
    assert api.CoreV1Api(reader.client).read_namespaced_config_map("note", namespace).data == {"a": "b"}
    for account, call in ((reader, "delete_namespaced_config_map"), (nobody, "read_namespaced_config_map")):
        with pytest.raises(api.ApiException) as refused:
            getattr(api.CoreV1Api(account.client), call)("note", namespace)
        assert refused.value.status == 403
    elsewhere = kube.namespace()
    assert kube.kubectl("get", "configmaps", account=reader).code == 0
    assert "forbidden" in kube.kubectl("get", "configmaps", f"--namespace={elsewhere}", account=reader).err


def test_what_is_run_dry_is_judged_and_not_kept(kube: Cluster, namespace: str) -> None:
    assert kube.apply(NOTE, namespace=namespace, dry_run=True).code == 0
    assert "NotFound" in kube.kubectl("get", "configmap", "note", f"--namespace={namespace}").err
    misspelt = {key if key != "data" else "dada": value for key, value in NOTE.items()}
    assert "dada" in kube.apply(misspelt, namespace=namespace, dry_run=True).err
