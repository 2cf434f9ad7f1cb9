"""Who may do what, through the real clients: certificates made here, roles, tenants, and what the service says."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from hisparse_svc import Client, InvalidInput, NotAllowed, Overloaded, Request, Tls, Unreachable, aio
from hisparse_svc.fleet import Fleet

from tests.conftest import run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.serve.conftest import Served


@dataclass
class Authority:
    """A certificate authority in a folder, by the openssl command."""

    folder: Path

    def openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)

    def begin(self) -> Authority:
        self.openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
            *(
                "-keyout",
                "ca.key",
                "-out",
                "ca.pem",
                "-subj",
                "/CN=test",
                "-addext",
                "basicConstraints=critical,CA:TRUE",
            ),
        )
        return self

    def issue(self, name: str, alternative_names: str, subject: str = "/CN=test") -> Tls:
        (self.folder / "names").write_text(f"subjectAltName={alternative_names}\nbasicConstraints=CA:FALSE\n")
        self.openssl(
            *("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", subject),
        )
        self.openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-days", "2", "-out", f"{name}.pem", "-extfile", "names"),
        )
        of = {field: self.folder / f"{name}.{kind}" for field, kind in (("cert", "pem"), ("key", "key"))}
        return Tls(ca=self.folder / "ca.pem", **of)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path).begin()


def port_of(served: Served) -> str:
    found = re.search(r"0\.0\.0\.0:(\d+)", served.ready)
    assert found, served.ready
    return f"localhost:{found[1]}"


def test_clients_over_tls_do_what_their_certificate_says(serve: Callable[..., Served], authority: Authority) -> None:
    node = authority.issue("node", "DNS:localhost,IP:127.0.0.1")
    router = authority.issue("router", "URI:spiffe://here/router")
    stranger = authority.issue("stranger", "DNS:stranger.example")
    served = serve(
        *("--listen", "0.0.0.0:0", "--tls-cert", str(node.cert), "--tls-key", str(node.key)),
        *("--tls-client-ca", str(authority.folder / "ca.pem")),
        *("--access", f"cert:spiffe://here/router=router@a uid:{os.getuid()}=admin"),
    )
    target = port_of(served)
    with Client(target, tls=router) as client:
        with client.admit(64, tenant="a") as held:
            assert [lease.id for lease in client.list_leases()] == [held.lease.id]
        with pytest.raises(NotAllowed, match="admin") as refused:
            client.drain()
        assert refused.value.role == "admin"
        with pytest.raises(NotAllowed, match="act for a alone"):
            client.admit(64, tenant="b")

    async def admit() -> int:
        async with aio.Client(target, tls=router) as client, client.admit(64, tenant="a") as held:
            return held.lease.pages

    assert asyncio.run(admit()) == 1
    with Client(target, tls=stranger, timeout_s=2) as client, pytest.raises(Unreachable):
        client.get_capacity()
    with Client(target, timeout_s=2) as client, pytest.raises(Unreachable):
        client.get_capacity()
    flags = ("--ca", str(router.ca), "--cert", str(router.cert), "--key", str(router.key))
    assert run("capacity", "--target", target, *flags, "--json").code == 0
    variables = {"HISPARSE_CA": str(router.ca), "HISPARSE_CERT": str(router.cert), "HISPARSE_KEY": str(router.key)}
    assert run("admit", "--prompt-tokens", "64", "--tenant", "a", "--target", target, "--json", env=variables).code == 0

    with pytest.raises(NotAllowed, match="router"):
        served.client().admit(64)
    served.client().drain()
    served.end()
    assert served.process.stderr is not None
    told = served.process.stderr.read()
    assert len(re.findall(r"stranger\.example.*not on the access list", told)) == 1, told
    assert "PRIVATE" not in told


def test_a_service_is_dialled_by_address_where_the_name_in_its_certificate_is_said(
    serve: Callable[..., Served], authority: Authority
) -> None:
    node = authority.issue("node", "DNS:hisparse-decode")
    router = authority.issue("router", "DNS:hisparse-router")
    served = serve(
        *("--listen", "0.0.0.0:0", "--tls-cert", str(node.cert), "--tls-key", str(node.key)),
        *("--tls-client-ca", str(authority.folder / "ca.pem"), "--access", "cert:hisparse-router=router"),
    )
    target = port_of(served).replace("localhost", "127.0.0.1")
    named = replace(router, server_name="hisparse-decode")
    with Client(target, tls=named) as client:
        assert client.get_capacity().epoch > 0
    with Fleet([target], tls=named) as fleet, fleet.admit(64) as held:
        assert held.node == target

    async def admit() -> int:
        async with aio.Client(target, tls=named) as client, client.admit(64) as held:
            return held.lease.pages

    assert asyncio.run(admit()) == 1
    flags = ("--ca", str(router.ca), "--cert", str(router.cert), "--key", str(router.key))
    name = ("--server-name", "hisparse-decode")
    variables = {"HISPARSE_CA": str(router.ca), "HISPARSE_CERT": str(router.cert), "HISPARSE_KEY": str(router.key)}
    in_environment = {"HISPARSE_SERVER_NAME": "hisparse-decode"}
    for given, env in (
        ((*flags, *name), {}),
        (flags, in_environment),
        (name, variables),
        ((), {**variables, **in_environment}),
        (name, {**variables, "HISPARSE_SERVER_NAME": "another"}),
    ):
        assert run("capacity", "--target", target, *given, env=env).code == 0, (given, env)
    told = run("capacity", "--target", target, *flags)
    assert (told.code, "say which one it is (`--server-name`)" in told.errors[0]) == (3, True)


def test_what_is_wrong_with_certificates_is_named_by_its_flag(tmp_path: Path, authority: Authority) -> None:
    with pytest.raises(InvalidInput, match="is for TCP"):
        Client("unix:/tmp/h.sock", tls=Tls(ca="a", cert="b", key="c"))
    with pytest.raises(InvalidInput) as refused:
        Client("localhost:1", tls=Tls(ca=tmp_path / "none", cert=authority.folder / "ca.pem", key=tmp_path))
    assert [problem.field for problem in refused.value.problems] == ["ca", "key"]
    told = run("capacity", "--target", "localhost:1", "--ca", "ca.pem")
    assert told.code == 2
    assert "--cert" in told.err
    assert "--key" in told.err
    told = run("capacity", "--target", "localhost:1", "--server-name", "decode")
    assert (told.code, "give --ca, --cert and --key" in told.errors[0]) == (2, True)
    flags = ("--ca", "none.pem", "--cert", "none.pem", "--key", "none.pem", "--server-name", "no name")
    told = run("capacity", "--target", "localhost:1", *flags)
    assert [each.partition(" is ")[0] for each in told.errors] == ["--ca", "--cert", "--key", "--server-name"]
    told = run("serve", "--backing", "none", "--socket", str(tmp_path / "n.sock"), "--tls-cert", "x", "--access", "bob")
    assert told.code == 2
    assert "--tls-key" in told.err
    told = run("serve", "--backing", "none", "--socket", str(tmp_path / "n.sock"), "--access", "uid:1=boss, bob")
    assert told.code == 2
    assert "is no role" in told.err
    assert "names nobody" in told.err


def test_a_configured_rate_sheds_admits_and_no_release(serve: Callable[..., Served]) -> None:
    client = serve("--admits-per-second", "2").client()
    held = client.batch_admit([Request(prompt_tokens=64)] * 3)  # a second and a half of Admits at once
    with pytest.raises(Overloaded) as refused:
        client.admit(64)
    assert refused.value.metadata["what"] == "Admits per second"
    for decision in held:
        assert decision.lease is not None
        assert not client.release(decision.lease.id).already_released
