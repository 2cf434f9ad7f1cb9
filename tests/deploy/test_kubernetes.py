"""What deploy/kubernetes renders: as committed, valid, without privileges, and what service and planner agree to."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from hisparse_svc import _core, config, plan
from hisparse_svc.node import check

from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

yaml = pytest.importorskip("yaml", reason="no PyYAML: run make setup")

FOLDER = ROOT / "deploy/kubernetes"
GOLDEN = ROOT / "tests/deploy/golden"
NAMES = {"base": "base", "plain-pages": "overlays/plain-pages", "sglang": "overlays/sglang", "vllm": "overlays/vllm"}

Manifest = dict[str, Any]


def golden(name: str) -> list[Manifest]:
    return list(yaml.safe_load_all((GOLDEN / f"{name}.yaml").read_text(encoding="utf-8")))


def of_kind(manifests: list[Manifest], kind: str) -> Manifest:
    (found,) = [manifest for manifest in manifests if manifest["kind"] == kind]
    return found


def pod(manifests: list[Manifest]) -> Manifest:
    spec: Manifest = of_kind(manifests, "Deployment")["spec"]["template"]["spec"]
    return spec


def sidecar(manifests: list[Manifest]) -> Manifest:
    (found,) = pod(manifests)["initContainers"]
    return dict(found)


@pytest.fixture(params=NAMES)
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    return golden(request.param)


def rendered(where: str) -> list[Manifest]:
    """What a folder renders now: one of deploy/kubernetes, or any by its whole path."""
    path = os.pathsep.join([str(ROOT / "target/go-bin"), os.environ["PATH"]])
    kustomize, kubectl = shutil.which("kustomize", path=path), shutil.which("kubectl")
    if kustomize is None and kubectl is None:
        pytest.skip("no kustomize and no kubectl on this machine: run deploy/install-tools")
    command = [kustomize, "build"] if kustomize else [str(kubectl), "kustomize"]
    done = subprocess.run([*command, str(FOLDER / where)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_rendered_is_what_is_committed(name: str) -> None:
    assert rendered(NAMES[name]) == golden(name), "run deploy/kubernetes/render and look at the diff"


def test_every_manifest_fits_the_schema_of_its_kind(manifests: list[Manifest]) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="no kubernetes-validate: run make setup")
    kinds = set()
    for manifest in manifests:
        if manifest["kind"] != "PodMonitor":  # not of Kubernetes; looked at by hand below
            validator.validate(manifest, "1.37", strict=True)
        kinds.add(manifest["kind"])
    assert kinds == {"ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "PodMonitor", "Service"}
    broken = copy.deepcopy(of_kind(manifests, "Deployment"))
    broken["spec"]["template"]["spec"]["initContainers"][0]["restartPolice"] = "Always"
    with pytest.raises(validator.ValidationError):
        validator.validate(broken, "1.37", strict=True)


def privileges(spec: Manifest) -> Iterator[str]:
    """Everything that a pod may and should not."""
    whole = spec.get("securityContext", {})
    if whole.get("runAsNonRoot") is not True or not whole.get("runAsUser"):
        yield "may run as root"
    if whole.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "has no seccomp profile"
    yield from (f"has {name}" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name))
    if spec.get("automountServiceAccountToken") is not False:
        yield "has a token of the cluster"
    yield from (f"mounts {volume['hostPath']}" for volume in spec.get("volumes", []) if "hostPath" in volume)
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        name, own = container["name"], container.get("securityContext", {})
        if own.get("readOnlyRootFilesystem") is not True:
            yield f"{name} may write to its root"
        if own.get("capabilities", {}).get("drop") != ["ALL"] or own.get("capabilities", {}).get("add"):
            yield f"{name} has capabilities"
        if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
            yield f"{name} may gain privileges"
        if own.get("runAsUser") == 0 or own.get("runAsNonRoot") is False:
            yield f"{name} may run as root"


def test_no_pod_has_a_privilege(manifests: list[Manifest]) -> None:
    assert list(privileges(pod(manifests))) == []


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        ("securityContext.runAsNonRoot", False, "may run as root"),
        ("securityContext.runAsUser", 0, "may run as root"),
        ("securityContext.seccompProfile", {"type": "Unconfined"}, "has no seccomp profile"),
        ("hostIPC", True, "has hostIPC"),
        ("automountServiceAccountToken", True, "has a token of the cluster"),
        ("volumes", [{"name": "dev", "hostPath": {"path": "/dev"}}], "mounts {'path': '/dev'}"),
        ("initContainers.0.securityContext.readOnlyRootFilesystem", False, "hisparse may write to its root"),
        (
            "initContainers.0.securityContext.capabilities",
            {"drop": ["ALL"], "add": ["IPC_LOCK"]},
            "hisparse has capabilities",
        ),
        ("containers.0.securityContext.allowPrivilegeEscalation", True, "engine may gain privileges"),
        ("containers.0.securityContext.runAsUser", 0, "engine may run as root"),
    ],
)
def test_each_privilege_that_is_planted_is_found(path: str, value: object, found: str) -> None:
    spec = copy.deepcopy(pod(golden("base")))
    *way, last = path.split(".")
    place: Any = spec
    for step in way:
        place = place[int(step) if step.isdecimal() else step]
    place[last] = value
    assert list(privileges(spec)) == [found]


def test_the_sidecar_starts_first_and_the_engine_waits_until_the_pool_is_there(manifests: list[Manifest]) -> None:
    container = sidecar(manifests)
    assert container["restartPolicy"] == "Always"
    assert container["startupProbe"]["httpGet"]["path"] == "/readyz"
    assert container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"] >= 600
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["grpc"] == {"port": 7412, "service": "readiness"}
    assert "lifecycle" not in container, "a preStop hook runs beside the engine's, and stops it too early"
    shared = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}["/run/hisparse"]
    volumes = {volume["name"]: volume for volume in pod(manifests)["volumes"]}
    assert volumes[shared]["emptyDir"]["medium"] == "Memory"
    (engine,) = pod(manifests)["containers"]
    assert {"name": shared, "mountPath": "/run/hisparse"} in engine["volumeMounts"]
    resources = container["resources"]
    assert resources["requests"] == resources["limits"], "huge pages are never overcommitted, and the pod is Guaranteed"


def test_ports_that_are_named_elsewhere_are_ports_of_the_pod(manifests: list[Manifest]) -> None:
    spec = pod(manifests)
    ports = {port["name"] for each in [*spec["initContainers"], *spec["containers"]] for port in each["ports"]}
    labels = of_kind(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"]
    monitor = of_kind(manifests, "PodMonitor")["spec"]
    assert {endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]} == {"hisparse-http"} <= ports
    assert monitor["jobLabel"] in labels
    assert labels[monitor["jobLabel"]] == "hisparse", "the job that deploy/alerts asks for"
    network = of_kind(manifests, "NetworkPolicy")["spec"]
    assert {port["port"] for rule in network["ingress"] for port in rule["ports"]} == ports
    for selector in (
        monitor["selector"],
        network["podSelector"],
        of_kind(manifests, "PodDisruptionBudget")["spec"]["selector"],
        {"matchLabels": of_kind(manifests, "Service")["spec"]["selector"]},
    ):
        assert selector["matchLabels"].items() <= labels.items()
    (routers,) = [peer["podSelector"] for rule in network["ingress"] for peer in rule["from"] if "podSelector" in peer]
    assert "matchLabels" not in routers, "kustomize would have added our own labels: no router has those"


def settings(manifests: list[Manifest], folder: Path) -> tuple[config.ServeConfig, Any]:
    """What the sidecar would run with, and the plan behind it."""
    path = folder / "serve.toml"
    path.write_text(of_kind(manifests, "ConfigMap")["data"]["serve.toml"], encoding="utf-8")
    chosen = config.load({}, {}, path)
    return chosen, check(chosen)


def test_the_settings_are_ones_that_serve_takes_and_fit_the_memory_that_is_asked_for(
    manifests: list[Manifest], tmp_path: Path
) -> None:
    chosen, planned = settings(manifests, tmp_path)
    limits = sidecar(manifests)["resources"]["limits"]
    given = limits.get("hugepages-2Mi", limits["memory"])
    needed = planned.host_bytes if chosen.backing == "memory" else 0
    assert needed + (256 << 20) <= _core.parse_size(given.replace("Gi", "GiB").replace("Mi", "MiB"), "limits")
    assert chosen.access is not None
    assert "cert:hisparse-router=router" in chosen.access


ENGINES = {
    "sglang": {"ratio": 4.0},
    "vllm": {"host_pool": 64 << 30},
}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_sidecar_of_an_engine_never_counts_more_than_the_engine_has(engine: str, tmp_path: Path) -> None:
    manifests = golden(engine)
    chosen, counted = settings(manifests, tmp_path)
    assert chosen.backing == "none"
    (container,) = pod(manifests)["containers"]
    text = " ".join(container["args"])
    assert f"-size={chosen.tp}" in text or f"--tp={chosen.tp}" in text
    assert f"--kv-cache-dtype={chosen.kv_dtype}" in text
    hot = int(re.search(r'"device_buffer_size":(\d+)', text)[1])  # type: ignore[index]
    options = [json.loads(found) for found in re.findall(r"=(\{.*?\})(?= --|$)", text)]
    sizes = json.dumps(options)
    wanted = ENGINES[engine]
    assert ('"host_to_device_ratio": 4' if "ratio" in wanted else '"host_pool_gib": 64') in sizes
    theirs = plan("glm-5.2", engine=engine, gpu="h200", tp=8, ep=True, kv_dtype="fp8_e4m3", hot_rows=hot, **wanted)
    assert counted.logical_tokens <= theirs.logical_tokens
    assert (chosen.seats or counted.seats) <= theirs.seats
    assert counted.logical_tokens > 0.9 * theirs.logical_tokens, "and not much less either"
