"""Documents of deploy/kubernetes: rendered as kubectl does, picked, and changed in one place."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kube.cluster import Cluster

Manifest = dict[str, Any]

FOLDER = ROOT / "deploy/kubernetes"


def render(kube: Cluster, where: Path) -> list[Manifest]:
    """What a kustomization renders."""
    import yaml  # noqa: PLC0415 - tests that render skip where it is not installed

    done = kube.kubectl("kustomize", str(where))
    assert done.code == 0, done.err
    return [each for each in yaml.safe_load_all(done.out) if each]


def of_kind(manifests: list[Manifest], kind: str) -> Manifest:
    (found,) = [each for each in manifests if each["kind"] == kind]
    return copy.deepcopy(found)


def pods_of(manifests: list[Manifest]) -> list[Manifest]:
    """The pods that the controllers would make."""
    return [
        {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(each["spec"]["template"])}
        for each in manifests
        if each["kind"] in ("Deployment", "DaemonSet", "StatefulSet")
    ]


def named(pod: Manifest, name: str = "decode-0") -> Manifest:
    return {**pod, "metadata": {**pod["metadata"], "name": name}}


def changed(document: Manifest, path: str, value: object) -> Manifest:
    """The document with one place set, or removed where the value is `...`."""
    document = copy.deepcopy(document)
    *way, last = [int(step) if step.isdecimal() else step for step in path.split("/")]
    place: Any = document
    for step in way:
        place = place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return document
