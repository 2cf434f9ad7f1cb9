"""The suite over mutual TLS, as a router beyond the machine would run it."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.conftest import run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.serve.conftest import Served


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def certificates(folder: Path) -> None:
    """An authority, and a server and a router that it vouches for."""
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    authority = (str(folder / "ca.pem"), str(folder / "ca.key"))
    openssl("req", "-x509", *curve, "-subj", "/CN=authority", "-out", authority[0], "-keyout", authority[1])
    for who, name in (("server", "IP:127.0.0.1"), ("router", "DNS:router.test")):
        files = [str(folder / f"{who}.{kind}") for kind in ("pem", "key")]
        signed = ("-CA", authority[0], "-CAkey", authority[1], "-addext", f"subjectAltName={name}")
        leaf = ("-addext", "basicConstraints=critical,CA:FALSE")
        openssl("req", "-x509", *curve, *signed, *leaf, "-subj", f"/CN={who}", "-out", files[0], "-keyout", files[1])


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here to make certificates with")
def test_a_router_with_a_certificate_is_served_over_tls(serve: Callable[..., Served], tmp_path: Path) -> None:
    certificates(tmp_path)
    ours = ("--tls-cert", f"{tmp_path}/server.pem", "--tls-key", f"{tmp_path}/server.key")
    theirs = ("--tls-client-ca", f"{tmp_path}/ca.pem", "--access", "cert:router.test=router")
    served = serve("--listen", "127.0.0.1:0", "--json", *ours, *theirs)
    assert served.process.stdout is not None
    told = served.ready
    while "127.0.0.1:" not in told:
        told = served.process.stdout.readline()
    target = told.strip().strip('",')
    shown = ("--ca", f"{tmp_path}/ca.pem", "--cert", f"{tmp_path}/router.pem", "--key", f"{tmp_path}/router.key")
    found = run("conformance", target, *shown, "--only", "admit.*", "--only", "release.*", "--only", "dump.*", "--json")
    assert found.code == 0, found
    outcomes = {case["name"]: case["outcome"] for case in found.document["cases"]}
    assert outcomes["release.what_was_taken_is_back"] == "passed"
    assert outcomes["dump.every_lease_is_in_it_with_its_extents"] == "skipped"
    assert run("conformance", target, "--json").code == 3, "without a certificate nothing answers"
