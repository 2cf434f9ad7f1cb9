"""One API server for all tests of the session, and a namespace for each."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kube.cluster import Cluster


@pytest.fixture(scope="session")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running API server; skips where it is not built, or there is no client for it."""
    pytest.importorskip("kubernetes.client", reason="no Kubernetes client: run make setup")
    from tests.kube.cluster import Cluster, binaries  # noqa: PLC0415 - needs that client

    programs = binaries()
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here to make certificates with")
    cluster = Cluster(tmp_path_factory.mktemp("kube"), programs)
    try:
        yield cluster.start()
    finally:
        cluster.close()


@pytest.fixture
def namespace(kube: Cluster) -> str:
    """A namespace of this test's own."""
    return kube.namespace()
