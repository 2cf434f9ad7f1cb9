"""What the two accounts of the directory may do on a real API server, and that they may do nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hisparse_svc.kube import objects
from hisparse_svc.kube.api import Api, Rejected

from tests.publish.sample import INFO, condition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kube.cluster import Account, Cluster

pytest.importorskip("kubernetes.client", reason="no Kubernetes client: run make setup")
from tests.kube.directory import Pod, grant, installed, reader, until

NODES = "/apis/hisparse.io/v1alpha1/namespaces/{}/hisparsenodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"


@pytest.fixture(scope="module", autouse=True)
def kind(kube: Cluster) -> Iterator[None]:
    with installed(kube):
        yield


@pytest.fixture
def pod(kube: Cluster, namespace: str) -> Pod:
    """A pod whose publisher has rights, once the policy that narrows them is in force."""
    grant(kube, namespace)
    made = Pod(kube, namespace, "decode-0").make()
    until(lambda: code(made, "other"))
    return made


def as_pod(pod: Pod) -> Api:
    return Api(pod.kube.client(pod.token).configuration)


def write(pod: Pod, name: str, *, uid: str | None = None, what: str = "node", api: Api | None = None) -> None:
    """Write as this pod's publisher, under a name and an owner of the test's choice."""
    identity = objects.Identity(pod.namespace, name, "10.0.0.7:7411", pod.uid if uid is None else uid)
    now = datetime.now(UTC)
    bodies = {
        "node": (objects.nodes_path(pod.namespace, name), objects.node_body(identity, INFO)),
        "status": (objects.nodes_path(pod.namespace, name, "status"), objects.status_body(identity, condition(), now)),
        "lease": (objects.leases_path(pod.namespace, name), objects.lease_body(identity, 30, now)),
    }
    path, body = bodies[what]
    (api or as_pod(pod)).apply(path, body, manager=objects.MANAGER)


def code(pod: Pod, name: str, **more: Any) -> int:
    """What a write comes to: 0 where it is taken."""
    try:
        write(pod, name, **more)
    except Rejected as refused:
        return refused.status
    return 0


def test_a_publisher_writes_its_own_object_its_status_and_its_lease(pod: Pod) -> None:
    for _ in range(2):  # as a create, and as a change
        for what in ("node", "status", "lease"):
            write(pod, "decode-0", what=what)


@pytest.mark.parametrize("what", ["node", "lease"])
def test_a_publisher_writes_nobody_elses(pod: Pod, what: str) -> None:
    other = Pod(pod.kube, pod.namespace, "decode-1").make()
    for each in ("node", "status", "lease"):
        write(other, "decode-1", what=each)
    with pytest.raises(Rejected, match="writes the object that is named as its own pod, decode-0") as refused:
        write(pod, "decode-1", what=what, uid=other.uid)
    assert refused.value.status == 422
    if what == "node":
        assert code(pod, "decode-1", what="status", uid=other.uid) == 422
    assert code(pod, "router-election", what="lease") == 422, "nor a Lease of something else"


@pytest.mark.parametrize("uid", ["", "00000000-0000-4000-8000-000000000000"])
def test_what_a_publisher_writes_is_owned_by_its_pod(pod: Pod, uid: str) -> None:
    for what in ("node", "lease"):
        with pytest.raises(Rejected, match="a publisher's object is owned by its own pod"):
            write(pod, "decode-0", what=what, uid=uid)


@pytest.mark.parametrize("name", ["hisparse-node", "a-tool"])
def test_a_token_of_no_pod_writes_nothing(kube: Cluster, pod: Pod, name: str) -> None:
    rules = [{"apiGroups": ["hisparse.io"], "resources": ["*"], "verbs": ["create", "patch"]}]
    account = kube.account(pod.namespace, name, [] if name == "hisparse-node" else rules)
    unbound = Api(account.client.configuration)
    with pytest.raises(Rejected, match="this token is of no pod"):
        write(pod, "decode-0", api=unbound)


def test_a_pod_of_the_same_name_takes_its_predecessors_object_over(kube: Cluster, pod: Pod) -> None:
    for what in ("node", "status", "lease"):
        write(pod, "decode-0", what=what)
    kube.kubectl("delete", "pod", "decode-0", "--force", "--wait=false", namespace=pod.namespace)
    until(lambda: kube.kubectl("get", "pod", "decode-0", namespace=pod.namespace).code != 0)
    successor = Pod(kube, pod.namespace, "decode-0").make()
    assert successor.uid != pod.uid
    for what in ("node", "status", "lease"):
        write(successor, "decode-0", what=what)
    for kind in ("hisparsenode", "lease"):
        told = kube.kubectl(
            "get", kind, "decode-0", "--output=jsonpath={.metadata.ownerReferences[*].uid}", namespace=pod.namespace
        )
        assert told.out == successor.uid, "or the collector of garbage would take it"


def test_an_administrator_and_leader_elections_are_not_held_up(kube: Cluster, pod: Pod) -> None:
    write(pod, "decode-9", api=Api(kube.admin.configuration))
    elects = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create", "patch"]}
    controller = kube.account(pod.namespace, "controller", [elects])
    write(pod, "leader", what="lease", api=Api(controller.client.configuration))


VERBS = {
    "get": ("GET", "/decode-0", None),
    "list": ("GET", "", None),
    "watch": ("GET", "?watch=true&timeoutSeconds=1", None),
    "create": ("POST", "", {}),
    "update": ("PUT", "/decode-0", {}),
    "patch": ("PATCH", "/decode-0", {}),
    "delete": ("DELETE", "/decode-0", None),
    "deletecollection": ("DELETE", "", None),
}
OTHERS = {
    "pods": "/api/v1/namespaces/{}/pods",
    "secrets": "/api/v1/namespaces/{}/secrets",
    "configmaps": "/api/v1/namespaces/{}/configmaps",
    "services": "/api/v1/namespaces/{}/services",
    "events": "/api/v1/namespaces/{}/events",
    "deployments": "/apis/apps/v1/namespaces/{}/deployments",
    "endpointslices": "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices",
    "roles": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "rolebindings": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "serviceaccounts": "/api/v1/namespaces/{}/serviceaccounts",
    "hisparsenodes of default": "/apis/hisparse.io/v1alpha1/namespaces/default/hisparsenodes",
    "leases of kube-system": "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases",
}
CLUSTER = ("/api/v1/nodes", "/api/v1/namespaces", "/apis/hisparse.io/v1alpha1/hisparsenodes", "/api/v1/secrets")


def answer(client: Any, method: str, path: str, body: Any) -> int:
    """The code of a call, made by hand: the client would refuse some of them itself."""
    settings = client.configuration
    headers = {"authorization": settings.api_key["authorization"], "Content-Type": "application/merge-patch+json"}
    if method == "POST":
        headers["Content-Type"] = "application/json"
    data = None if body is None else b"{}"
    found = client.rest_client.pool_manager.request(method, f"{settings.host}{path}", headers=headers, body=data)
    return int(found.status)


def allowed(client: Any, path: str) -> set[str]:
    """The verbs that are not forbidden there; what comes of them is not asked."""
    return {verb for verb, (method, end, body) in VERBS.items() if answer(client, method, f"{path}{end}", body) != 403}


def accounts(kube: Cluster, pod: Pod) -> dict[str, tuple[Any, set[str], set[str]]]:
    router: Account = reader(kube, pod.namespace)
    return {
        "publisher": (kube.client(pod.token), {"create", "patch"}, {"patch"}),
        "router": (router.client, {"list", "watch"}, set()),
    }


@pytest.mark.parametrize("who", ["publisher", "router"])
def test_every_verb_beyond_those_it_needs_is_forbidden(kube: Cluster, pod: Pod, who: str) -> None:
    write(pod, "decode-0", api=Api(kube.admin.configuration))
    client, verbs, of_status = accounts(kube, pod)[who]
    for path in (NODES, LEASES):
        assert allowed(client, path.format(pod.namespace)) == verbs, path
    status = {
        verb
        for verb, (method, end, body) in VERBS.items()
        if "/" in end and answer(client, method, f"{NODES.format(pod.namespace)}{end}/status", body) not in (403, 405)
    }
    assert status == of_status
    for name, path in OTHERS.items():
        assert allowed(client, path.format(pod.namespace)) == set(), name
    for path in CLUSTER:
        assert allowed(client, path) == set(), path
