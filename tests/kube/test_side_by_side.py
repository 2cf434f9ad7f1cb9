"""Several deployments of ours in one namespace: no selector of one takes the pods of another.

::

    base ─────────┐                   ┌─ Service, Deployment, NetworkPolicy and budget select the pods of their own
    sglang, vllm ─┴─► one namespace ──┤
                                      └─ so a pod has one budget: the API evicts none that has two
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kube.manifests import FOLDER, named, pods_of, render

api = pytest.importorskip("kubernetes.client", reason="no Kubernetes client: run make setup")

if TYPE_CHECKING:
    from tests.kube.cluster import Cluster
    from tests.kube.manifests import Manifest

SETS = ("base", "overlays/sglang", "overlays/vllm")


def run_pod(kube: Cluster, namespace: str, pod: Manifest) -> None:
    """As the controller and the kubelet would: made, running and ready."""
    core = api.CoreV1Api(kube.admin)
    name = core.create_namespaced_pod(namespace, pod).metadata.name
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    core.patch_namespaced_pod_status(name, namespace, {"status": ready})


def allow_one(kube: Cluster, namespace: str) -> None:
    """As the controller of budgets would, for one pod each."""
    policy = api.PolicyV1Api(kube.admin)
    for budget in policy.list_namespaced_pod_disruption_budget(namespace).items:
        counts = {"currentHealthy": 1, "desiredHealthy": 0, "disruptionsAllowed": 1, "expectedPods": 1}
        status = {"observedGeneration": budget.metadata.generation, **counts}
        policy.patch_namespaced_pod_disruption_budget_status(budget.metadata.name, namespace, {"status": status})


@pytest.fixture
def pods(kube: Cluster, namespace: str) -> list[str]:
    """All of them applied in one namespace, and the names of their pods, one each."""
    names = []
    for name in SETS:
        documents = [each for each in render(kube, FOLDER / name) if each["kind"] != "PodMonitor"]
        assert kube.apply(*documents, namespace=namespace).code == 0
        (pod,) = pods_of(documents)
        names.append(name.rpartition("/")[2])
        run_pod(kube, namespace, named(pod, names[-1]))
    return names


def test_of_several_in_one_namespace_each_selects_its_own_pods(kube: Cluster, namespace: str, pods: list[str]) -> None:
    core = api.CoreV1Api(kube.admin)
    workloads = api.AppsV1Api(kube.admin).list_namespaced_deployment(namespace).items
    budgets = api.PolicyV1Api(kube.admin).list_namespaced_pod_disruption_budget(namespace).items
    policies = api.NetworkingV1Api(kube.admin).list_namespaced_network_policy(namespace).items
    selectors = [
        *(each.spec.selector for each in core.list_namespaced_service(namespace).items),
        *(each.spec.selector.match_labels for each in (*workloads, *budgets)),
        *(each.spec.pod_selector.match_labels for each in policies),
    ]
    assert len(selectors) == 4 * len(pods)
    for selector in selectors:
        labels = ",".join(f"{key}={value}" for key, value in selector.items())
        found = [pod.metadata.name for pod in core.list_namespaced_pod(namespace, label_selector=labels).items]
        assert len(found) == 1, f"{labels} selects {found}"


def test_each_pod_can_be_evicted_because_it_has_one_budget(kube: Cluster, namespace: str, pods: list[str]) -> None:
    allow_one(kube, namespace)
    for name in pods:
        api.CoreV1Api(kube.admin).create_namespaced_pod_eviction(name, namespace, {"metadata": {"name": name}})
