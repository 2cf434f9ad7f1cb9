"""The cluster's directory of nodes in a real API server: its kind, its accounts, pods, and publishers as processes.

::

    deploy/kubernetes/cluster ─► kind, policy
    components/directory/rbac.yaml ─► hisparse-node, hisparse-node-reader
    pod (nobody runs it) ─► a token bound to it ─► hisparse-svc publish ─► HisparseNode, Lease
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hisparse_svc.fleet import Fleet, KubernetesNodes
from hisparse_svc.kube.api import Api

from tests.conftest import ROOT, environment
from tests.deploy.prometheus import free_port
from tests.serve.conftest import SMALL, Served, start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import Run
    from tests.kube.cluster import Account, Cluster

api = pytest.importorskip("kubernetes.client", reason="no Kubernetes client: run make setup")

FOLDER = ROOT / "deploy/kubernetes"
WAIT_S = 30.0


def until(true: Callable[[], Any], longest_s: float = WAIT_S) -> Any:
    """Wait for something to be true; what it is."""
    over, last = time.monotonic() + longest_s, None
    while time.monotonic() < over:
        last = true()
        if last:
            return last
        time.sleep(0.05)
    return pytest.fail(f"not true within {longest_s:g} s: {last!r}")


def install(kube: Cluster) -> None:
    """The kind and the policy, and both in force."""
    done = kube.kubectl("apply", "--server-side", "--kustomize", str(FOLDER / "cluster"))
    assert done.code == 0, done.err
    done = kube.kubectl("wait", "--for=condition=Established", "--timeout=20s", "crd/hisparsenodes.hisparse.io")
    assert done.code == 0, done.err


@contextlib.contextmanager
def installed(kube: Cluster) -> Iterator[None]:
    """The same for a while: other tests find the cluster as they left it."""
    install(kube)
    yield
    kube.kubectl("delete", "--kustomize", str(FOLDER / "cluster"), "--ignore-not-found", "--timeout=20s")


def grant(kube: Cluster, namespace: str) -> None:
    """The publisher's account and both Roles in a namespace."""
    documents = list(yaml.safe_load_all((FOLDER / "components/directory/rbac.yaml").read_text(encoding="utf-8")))
    for document in documents:
        for subject in document.get("subjects", ()):
            subject["namespace"] = namespace  # as `kubectl apply -k` with a namespace sets it
    done = kube.apply(*documents, namespace=namespace)
    assert done.code == 0, done.err


def reader(kube: Cluster, namespace: str) -> Account:
    """A router's account, with the Role for routers."""
    account = kube.account(namespace, "router")
    binding = {
        "metadata": {"name": "router"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "hisparse-node-reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "router", "namespace": namespace}],
    }
    api.RbacAuthorizationV1Api(kube.admin).create_namespaced_role_binding(namespace, binding)
    return account


@dataclass
class Pod:
    """A pod that nobody runs, and what the downward API and a projected token would give its publisher."""

    kube: Cluster
    namespace: str
    name: str
    uid: str = ""
    token: str = ""

    def make(self) -> Pod:
        core = api.CoreV1Api(self.kube.admin)
        spec = {
            "serviceAccountName": "hisparse-node",
            "automountServiceAccountToken": False,
            "containers": [{"name": "node", "image": "registry.example/hisparse-svc:0.1.0"}],
        }
        self.uid = core.create_namespaced_pod(
            self.namespace, {"metadata": {"name": self.name}, "spec": spec}
        ).metadata.uid
        bound = {"apiVersion": "v1", "kind": "Pod", "name": self.name, "uid": self.uid}
        asked = {"spec": {"expirationSeconds": 3600, "boundObjectRef": bound}}
        self.token = core.create_namespaced_service_account_token("hisparse-node", self.namespace, asked).status.token
        return self

    def variables(self) -> dict[str, str]:
        return {
            "POD_NAME": self.name,
            "POD_NAMESPACE": self.namespace,
            "POD_UID": self.uid,
            "KUBECONFIG": str(self.kube.kubeconfig(self.token, self.namespace)),
        }


@dataclass
class Scene:
    """Nodes with publishers, in one namespace."""

    kube: Cluster
    namespace: str
    folder: Path
    router: Account
    pods: dict[str, Pod] = field(default_factory=dict)
    nodes: dict[str, Served] = field(default_factory=dict)
    publishers: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    logs: dict[str, Path] = field(default_factory=dict)
    fleets: list[Fleet] = field(default_factory=list)
    refresh_s: str = "60"
    """So seldom that what is seen sooner was written because it changed."""

    def node(self, name: str, *flags: str, wait: bool = True, of: str = "") -> Served:
        """A service on a socket and on loopback, and its publisher; after its first status, unless not to wait.

        It is in a pod of its own, or in the one `of` another node, under whose name it is then published.
        """
        pod = self.pods[name] = self.pods[of] if of else Pod(self.kube, self.namespace, name).make()
        address = f"127.0.0.1:{free_port()}"
        served = self.nodes[name] = start(self.folder / f"{name}.sock", *SMALL, "--listen", address, *flags)
        self.logs[name] = self.folder / f"{name}.log"
        with self.logs[name].open("w") as log:
            self.publishers[name] = subprocess.Popen(
                [
                    *(sys.executable, "-m", "hisparse_svc", "publish", "--target", served.target),
                    *("--address", address, "--refresh", self.refresh_s, "--lease", "5"),
                ],
                env=environment(**pod.variables()),
                stdout=log,
                stderr=log,
                text=True,
            )
        if wait:
            until(lambda: self.shown(pod.name).get("status"))
        return served

    def shown(self, name: str) -> dict[str, Any]:
        """The node's object as it is stored."""
        try:
            found: dict[str, Any] = api.CustomObjectsApi(self.kube.admin).get_namespaced_custom_object(
                "hisparse.io", "v1alpha1", self.namespace, "hisparsenodes", name
            )
        except api.ApiException as failure:
            assert failure.status == 404
            return {}
        return found

    def state(self, name: str) -> str:
        """Its state as it is stored."""
        return str(self.shown(name)["status"]["state"])

    def lease(self, name: str) -> Any:
        """Its Lease."""
        return api.CoordinationV1Api(self.kube.admin).read_namespaced_lease(name, self.namespace)

    def fleet(self) -> Fleet:
        """A router under its own account."""
        directory = KubernetesNodes(self.namespace, api=Api(self.router.client.configuration))
        self.fleets.append(Fleet(directory, lengths=[8_192]))
        return self.fleets[-1]

    def cli(self, run: Callable[..., Run], *arguments: str) -> Run:
        """`hisparse-svc fleet` as the router's user."""
        config = {"KUBECONFIG": str(self.router.kubeconfig)}
        return run("fleet", "--target", f"kubernetes-nodes:{self.namespace}", *arguments, env=config)

    def log(self, name: str) -> str:
        """What a publisher said."""
        return self.logs[name].read_text(encoding="utf-8")

    def close(self) -> None:
        for fleet in self.fleets:
            fleet.close()
        for publisher in self.publishers.values():
            if publisher.poll() is None:
                publisher.kill()
            publisher.wait(timeout=20)
        for served in self.nodes.values():
            for client in served.clients:
                client.close()
            if served.process.poll() is None:
                served.process.kill()
            served.process.communicate(timeout=20)
