"""What deploy/kubernetes renders for the directory: as committed, least rights, the token in one container alone."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest
from hisparse_svc.cli.fleet import LENGTHS

from tests.conftest import ROOT, run
from tests.deploy.test_kubernetes import FOLDER, Manifest, golden, of_kind, pod, privileges, rendered

if TYPE_CHECKING:
    from pathlib import Path

yaml = pytest.importorskip("yaml", reason="no PyYAML: run make setup")

NAMES = {"cluster": "cluster", "directory": "overlays/directory"}
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - where it is mounted


def containers(manifests: list[Manifest]) -> dict[str, Manifest]:
    spec = pod(manifests)
    return {each["name"]: each for each in [*spec["initContainers"], *spec["containers"]]}


@pytest.mark.parametrize("name", NAMES)
def test_what_is_rendered_is_what_is_committed(name: str) -> None:
    assert rendered(NAMES[name]) == golden(name), "run deploy/kubernetes/render and look at the diff"


def test_every_manifest_fits_the_schema_of_its_kind() -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="no kubernetes-validate: run make setup")
    for name in NAMES:
        for manifest in golden(name):
            if manifest["kind"] != "PodMonitor":  # not of Kubernetes
                validator.validate(manifest, "1.37", strict=True)


def test_it_is_the_base_and_a_publisher_and_nothing_of_the_base_changes() -> None:
    base, directory = golden("base"), golden("directory")
    spec, plain = pod(directory), pod(base)
    publisher = spec["initContainers"].pop()
    assert publisher["name"] == "hisparse-publish"
    assert spec.pop("serviceAccountName") == "hisparse-node"
    volumes = [volume for volume in spec["volumes"] if volume["name"] != "cluster-token"]
    assert len(volumes) == len(spec["volumes"]) - 1
    spec["volumes"] = volumes
    assert spec == plain
    others = {"ServiceAccount", "Role", "RoleBinding", "Deployment", "NetworkPolicy"}
    kept = [each for each in directory if each["kind"] not in others]
    assert [each["metadata"]["name"] for each in kept if each not in base] == ["hisparse-publish"], "its monitor"
    assert [each for each in base if each["kind"] not in others and each not in kept] == []


def test_prometheus_reaches_the_publishers_metrics_beside_the_nodes() -> None:
    directory, base = golden("directory"), golden("base")
    (monitor,) = [each for each in directory if each["kind"] == "PodMonitor" and each not in base]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("publish-http", "/metrics")
    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": "hisparse-publish"}]
    assert 'up{job="hisparse"}' in (ROOT / "deploy/alerts/hisparse.rules.yml").read_text(), "which is another one"
    labels = of_kind(directory, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    network = of_kind(directory, "NetworkPolicy")["spec"]
    (rule,) = [each for each in network["ingress"] if "namespaceSelector" in each["from"][0]]
    assert rule["ports"].pop() == {"protocol": "TCP", "port": "publish-http"}
    assert network == of_kind(base, "NetworkPolicy")["spec"], "to Prometheus alone"
    publisher = containers(directory)["hisparse-publish"]
    assert publisher["ports"] == [{"name": "publish-http", "containerPort": 7413}]
    assert publisher["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "publish-http"}
    assert publisher["args"][publisher["args"].index("--http") + 1].endswith(":7413")


def test_the_token_of_the_cluster_is_in_the_publishers_container_alone() -> None:
    manifests = golden("directory")
    assert list(privileges(pod(manifests))) == [], "the pod itself asks for no token"
    mounts = {
        name: [mount["mountPath"] for mount in each.get("volumeMounts", []) if mount["name"] == "cluster-token"]
        for name, each in containers(manifests).items()
    }
    assert mounts == {"hisparse": [], "hisparse-publish": [TOKEN], "engine": []}
    assert of_kind(manifests, "ServiceAccount")["automountServiceAccountToken"] is False
    (volume,) = [each for each in pod(manifests)["volumes"] if each["name"] == "cluster-token"]
    files = [
        each.get("serviceAccountToken", {}).get("path") or next(iter(each.values()))["items"][0]["path"]
        for each in volume["projected"]["sources"]
    ]
    assert files == ["token", "ca.crt", "namespace"], "what the official client looks for in a pod"


def test_the_publisher_starts_after_the_sidecar_so_it_stops_before_it() -> None:
    names = [each["name"] for each in pod(golden("directory"))["initContainers"]]
    assert names == ["hisparse", "hisparse-publish"]
    publisher = containers(golden("directory"))["hisparse-publish"]
    assert publisher["restartPolicy"] == "Always"
    assert publisher["resources"]["requests"] == publisher["resources"]["limits"], "or the pod is not Guaranteed"
    assert publisher["image"] == containers(golden("directory"))["hisparse"]["image"]


def test_its_arguments_and_variables_are_those_that_the_command_takes() -> None:
    publisher = containers(golden("directory"))["hisparse-publish"]
    told = run("publish", "--help").out
    assert publisher["args"][0] == "publish"
    for argument in publisher["args"][1:]:
        if argument.startswith("--"):
            assert argument in told
    fields = {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in publisher["env"]}
    assert fields == {
        "POD_NAME": "metadata.name",
        "POD_NAMESPACE": "metadata.namespace",
        "POD_UID": "metadata.uid",
        "POD_IP": "status.podIP",
    }
    socket = publisher["args"][publisher["args"].index("--target") + 1].removeprefix("unix:")
    assert socket.startswith("/run/hisparse/")
    assert {"name": "hisparse-run", "mountPath": "/run/hisparse"} in publisher["volumeMounts"]
    settings = of_kind(golden("directory"), "ConfigMap")["data"]["serve.toml"]
    assert f'socket = "{socket}"' in settings
    assert "0.0.0.0:7411" in settings, "the port that POD_IP is published with"


def test_the_columns_show_the_lengths_that_are_published() -> None:
    (kind,) = [each for each in golden("cluster") if each["kind"] == "CustomResourceDefinition"]
    (version,) = kind["spec"]["versions"]
    paths = [column["jsonPath"] for column in version["additionalPrinterColumns"]]
    shown = [int(found[1]) for found in (re.search(r"tokens==(\d+)", path) for path in paths) if found]
    assert tuple(shown) == LENGTHS


def rules(name: str) -> list[tuple[str, str, tuple[str, ...]]]:
    (role,) = [each for each in golden("directory") if each["kind"] == "Role" and each["metadata"]["name"] == name]
    return [
        (group, resource, tuple(rule["verbs"]))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    ]


def test_the_accounts_have_exactly_the_verbs_that_are_used() -> None:
    assert rules("hisparse-node") == [
        ("hisparse.io", "hisparsenodes", ("create", "patch")),
        ("hisparse.io", "hisparsenodes/status", ("patch",)),
        ("coordination.k8s.io", "leases", ("create", "patch")),
    ]
    assert rules("hisparse-node-reader") == [
        ("hisparse.io", "hisparsenodes", ("list", "watch")),
        ("coordination.k8s.io", "leases", ("list", "watch")),
    ]


def test_the_policy_is_about_the_account_of_the_component() -> None:
    (policy,) = [each for each in golden("cluster") if each["kind"] == "ValidatingAdmissionPolicy"]
    expression: str = policy["spec"]["matchConditions"][0]["expression"]
    named = re.search(r"matches\('(.*)'\)", expression)
    assert named is not None
    for account in (pod(golden("directory"))["serviceAccountName"], "hisparse-node-sglang", "prod-hisparse-node"):
        assert re.search(named[1], f"system:serviceaccount:serving:{account}")
    for account in ("hisparse", "hisparse-nodes", "hisparse-router", "default"):
        assert not re.search(named[1], f"system:serviceaccount:serving:{account}")
    assert policy["spec"]["failurePolicy"] == "Fail"
    (binding,) = [each for each in golden("cluster") if each["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    assert binding["spec"]["validationActions"] == ["Deny"]


@pytest.mark.parametrize("overlay", ["overlays/sglang", "overlays/vllm", "overlays/plain-pages"])
def test_the_component_goes_upon_any_overlay_with_names_and_a_namespace_of_ones_own(
    overlay: str, tmp_path: Path
) -> None:
    where = {
        kind: [os.path.relpath(FOLDER / name, tmp_path.resolve())]
        for kind, name in (("resources", overlay), ("components", "components/directory"))
    }
    text = yaml.safe_dump({**where, "namePrefix": "prod-", "namespace": "serving"})
    (tmp_path / "kustomization.yaml").write_text(text, encoding="utf-8")
    manifests = rendered(str(tmp_path))
    assert list(containers(manifests))[:2] == ["hisparse", "hisparse-publish"]
    account = pod(manifests)["serviceAccountName"]
    assert account == of_kind(manifests, "ServiceAccount")["metadata"]["name"] == "prod-hisparse-node"
    binding = of_kind(manifests, "RoleBinding")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "serving"}]
    roles = {each["metadata"]["name"] for each in manifests if each["kind"] == "Role"}
    assert binding["roleRef"]["name"] in roles
