"""What deploy/kubernetes renders, before a real API server: accepted as it is, each mistake refused for its reason."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT
from tests.kube.manifests import FOLDER, changed, named, of_kind, pods_of, render

api = pytest.importorskip("kubernetes.client", reason="no Kubernetes client: run make setup")
yaml = pytest.importorskip("yaml", reason="no PyYAML: run make setup")

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kube.cluster import Cluster
    from tests.kube.manifests import Manifest

ALL = sorted(str(path.parent.relative_to(FOLDER)) for path in FOLDER.rglob("kustomization.yaml"))
COMPONENTS = [name for name in ALL if "kind: Component" in (FOLDER / name / "kustomization.yaml").read_text()]
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@pytest.fixture(scope="module")
def rendered(kube: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Manifest]]:
    """Renders a kustomization, as kubectl does; a component by itself upon the base."""

    def one(name: str) -> list[Manifest]:
        where = FOLDER / name
        if name in COMPONENTS:
            made = tmp_path_factory.mktemp("component").resolve()
            resources, components = ([os.path.relpath(FOLDER / each, made)] for each in ("base", name))
            text = yaml.safe_dump({"resources": resources, "components": components})
            (made / "kustomization.yaml").write_text(text, encoding="utf-8")
            where = made
        return render(kube, where)

    return one


@pytest.fixture(scope="module")
def base(rendered: Callable[[str], list[Manifest]]) -> list[Manifest]:
    return rendered("base")


@pytest.fixture(scope="module", autouse=True)
def monitoring(kube: Cluster) -> None:
    """The kinds of the Prometheus operator, from its own release."""
    kinds = [
        str(kube.programs / f"crd/monitoring.coreos.com_{each}.yaml") for each in ("podmonitors", "prometheusrules")
    ]
    done = kube.kubectl("apply", "--server-side", *(f"--filename={each}" for each in kinds))
    assert done.code == 0, done.err
    done = kube.kubectl(
        "wait", "--for=condition=Established", "--timeout=20s", *(f"--filename={each}" for each in kinds)
    )
    assert done.code == 0, done.err


@pytest.mark.parametrize("name", ALL)
def test_every_manifest_is_accepted(
    kube: Cluster, namespace: str, rendered: Callable[[str], list[Manifest]], name: str
) -> None:
    documents = rendered(name)
    definitions = [each for each in documents if each["kind"] == "CustomResourceDefinition"]
    if definitions:  # run dry they would be unknown to the resources of their kinds
        assert kube.kubectl("apply", "--filename=-", stdin=yaml.safe_dump_all(definitions)).code == 0
        names = [f"crd/{each['metadata']['name']}" for each in definitions]
        assert kube.kubectl("wait", "--for=condition=Established", "--timeout=20s", *names).code == 0
    others = [each for each in documents if each not in definitions]  # those are kept by now, as kubectl applied them
    for flags, judged in (((), documents), (("--server-side",), others)):
        only = ("--dry-run=server", "--validate=strict", "--filename=-")
        done = kube.kubectl("apply", *flags, *only, stdin=yaml.safe_dump_all(judged), namespace=namespace)
        assert done.code == 0, done.err
        assert len(done.out.splitlines()) == len(judged)
        assert done.err == "", "no warning, as of a field that is deprecated"


@pytest.mark.parametrize("name", ALL)
def test_a_namespace_that_restricts_pods_takes_them_and_they_are_guaranteed(
    kube: Cluster, rendered: Callable[[str], list[Manifest]], name: str
) -> None:
    """The strictest pod security level; and kept, so that the server says the class that it reckons."""
    namespace = kube.namespace(**RESTRICTED)
    documents = rendered(name)
    accounts = [each for each in documents if each["kind"] == "ServiceAccount"]
    assert not accounts or kube.apply(*accounts, namespace=namespace).code == 0
    for pod in pods_of(documents):
        done = kube.apply(named(pod), namespace=namespace)
        assert (done.code, done.err) == (0, ""), done
        (kept,) = api.CoreV1Api(kube.admin).list_namespaced_pod(namespace).items
        assert kept.status.qos_class == "Guaranteed"


HARMFUL = {
    "baseline": [
        ("spec/hostIPC", True, "host namespaces (hostIPC=true)"),
        ("spec/hostNetwork", True, "host namespaces (hostNetwork=true)"),
        (
            "spec/volumes/0",
            {"name": "hisparse-run", "hostPath": {"path": "/run"}},
            'hostPath volumes (volume "hisparse-run',
        ),
        (
            "spec/initContainers/0/securityContext",
            {"privileged": True},
            'privileged (container "hisparse" must not set securityContext.privileged=true)',
        ),
        (
            "spec/initContainers/0/securityContext/capabilities",
            {"drop": ["ALL"], "add": ["IPC_LOCK"]},
            'must not include "IPC_LOCK"',
        ),
    ],
    "restricted": [
        ("spec/initContainers/0/securityContext/allowPrivilegeEscalation", ..., "allowPrivilegeEscalation != false"),
        ("spec/containers/0/securityContext/capabilities", ..., 'must set securityContext.capabilities.drop=["ALL"]'),
        ("spec/securityContext/runAsNonRoot", ..., "runAsNonRoot != true"),
        ("spec/securityContext/runAsUser", 0, "runAsUser=0"),
        ("spec/securityContext/seccompProfile", ..., "seccompProfile"),
    ],
}


@pytest.mark.parametrize("level", HARMFUL)
def test_a_namespace_that_enforces_a_level_refuses_each_privilege(
    kube: Cluster, base: list[Manifest], level: str
) -> None:
    namespace = kube.namespace(**{"pod-security.kubernetes.io/enforce": level})
    pod = named(pods_of(base)[0])
    assert kube.apply(pod, namespace=namespace, dry_run=True).code == 0
    for path, value, reason in HARMFUL[level]:
        done = kube.apply(changed(pod, path, value), namespace=namespace, dry_run=True)
        assert done.code != 0, path
        assert f'violates PodSecurity "{level}:latest"' in done.err
        assert reason in done.err


WRONG = {
    "a misspelt field": (
        "Deployment",
        "spec/template/spec/initContainers/0/restartPolice",
        "Always",
        "field not declared in schema",
    ),
    "a number that is text": ("Deployment", "spec/replicas", "one", "expected numeric"),
    "text that is a number": ("ConfigMap", "data/port", 7411, "expected string"),
    "a bad quantity": (
        "Deployment",
        "spec/template/spec/initContainers/0/resources/limits/memory",
        "2 Gigs",
        "quantities must match the regular expression",
    ),
    "huge pages that are overcommitted": (
        "Deployment",
        "spec/template/spec/initContainers/0/resources/requests/hugepages-2Mi",
        "1Gi",
        "hugepages-2Mi",
    ),
    "a request above its limit": (
        "Deployment",
        "spec/template/spec/initContainers/0/resources/requests/memory",
        "3Gi",
        "must be less than or equal to memory limit",
    ),
    "no selector": ("Deployment", "spec/selector", ..., "spec.selector: Required value"),
    "a selector that selects something else": (
        "Deployment",
        "spec/selector/matchLabels",
        {"app.kubernetes.io/name": "other"},
        "`selector` does not match template `labels`",
    ),
    "a sidecar that is none": (
        "Deployment",
        "spec/template/spec/initContainers/0/restartPolicy",
        ...,
        "may not be set for init containers without restartPolicy=Always",
    ),
    "a mount of nothing": (
        "Deployment",
        "spec/template/spec/initContainers/0/volumeMounts/0/name",
        "hisparse",
        'volumeMounts[0].name: Not found: "hisparse"',
    ),
    "a probe of two kinds": (
        "Deployment",
        "spec/template/spec/initContainers/0/readinessProbe/httpGet",
        {"path": "/readyz", "port": 7412},
        "may not specify more than 1 handler type",
    ),
    "two strategies": (
        "Deployment",
        "spec/strategy/rollingUpdate",
        {"maxSurge": 1},
        "may not be specified when strategy `type` is 'Recreate'",
    ),
    "a port that is none": ("Service", "spec/ports/0/port", 70_000, "must be between 1 and 65535"),
    "two ports of one name": ("Service", "spec/ports/1/name", "hisparse-grpc", "spec.ports[1].name: Duplicate value"),
    "a policy for a protocol that is none": (
        "NetworkPolicy",
        "spec/ingress/0/ports/0/protocol",
        "GRPC",
        'Unsupported value: "GRPC"',
    ),
    "a budget of two kinds": ("PodDisruptionBudget", "spec/minAvailable", 1, "cannot be both set"),
    "an interval that is none": ("PodMonitor", "spec/podMetricsEndpoints/0/interval", "15 s", "should match"),
    "a monitor of no pods": ("PodMonitor", "spec/selector", ..., "spec.selector: Required value"),
    "a misspelt field of a monitor": ("PodMonitor", "spec/podMetricsEndpoint", [], "field not declared in schema"),
    "a name that is none": ("Service", "metadata/name", "Hisparse", "must consist of lower case"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_is_refused_with_its_reason(
    kube: Cluster, namespace: str, base: list[Manifest], mistake: str
) -> None:
    kind, path, value, reason = WRONG[mistake]
    good = of_kind(base, kind)
    assert kube.apply(good, namespace=namespace, dry_run=True).code == 0
    done = kube.apply(changed(good, path, value), namespace=namespace, dry_run=True)
    assert done.code != 0
    assert reason in done.err


def test_what_may_not_change_is_refused(kube: Cluster, namespace: str, base: list[Manifest]) -> None:
    workload, service = of_kind(base, "Deployment"), of_kind(base, "Service")
    assert kube.apply(workload, service, namespace=namespace).code == 0
    for labels in (workload["spec"]["selector"]["matchLabels"], workload["spec"]["template"]["metadata"]["labels"]):
        labels["app.kubernetes.io/component"] = "other"
    assert "field is immutable" in kube.apply(workload, namespace=namespace, dry_run=True).err
    addressed = changed(service, "spec/clusterIP", "10.96.0.7")
    assert "may not change once set" in kube.apply(addressed, namespace=namespace, dry_run=True).err


def test_other_settings_and_sizes_are_an_update_of_what_runs(
    kube: Cluster, namespace: str, base: list[Manifest], rendered: Callable[[str], list[Manifest]]
) -> None:
    for documents in (base, rendered("overlays/plain-pages"), base):
        done = kube.apply(*documents, namespace=namespace)
        assert (done.code, done.err) == (0, "")


def test_the_alerts_are_the_spec_of_a_prometheus_rule(kube: Cluster, namespace: str) -> None:
    spec = yaml.safe_load(Path(ROOT / "deploy/alerts/hisparse.rules.yml").read_text(encoding="utf-8"))
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "hisparse"},
        "spec": spec,
    }
    done = kube.apply(rule, namespace=namespace, dry_run=True)
    assert done.code == 0, done.err
    wrong = changed(rule, "spec/groups/0/rules/0/for", "five minutes")
    assert "should match" in kube.apply(wrong, namespace=namespace, dry_run=True).err
