"""A service that is there and says no: told apart from one that is not, each with its own words and exit code."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hisparse_svc import Client, InvalidInput, NotAllowed, Tls, TurnedAway, Unreachable

from tests.conftest import run
from tests.serve.test_access import Authority, port_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.serve.conftest import Served


def told(target: str, tls: Tls | None = None) -> tuple[int, str]:
    """What `capacity` says in its one line, and with which exit code."""
    flags = ("--ca", str(tls.ca), "--cert", str(tls.cert), "--key", str(tls.key)) if tls else ()
    flags += ("--server-name", tls.server_name) if tls and tls.server_name else ()
    done = run("capacity", "--target", target, *flags)
    assert len(done.errors) == 1, done.err  # no line of gRPC's own
    return done.code, done.errors[0]


def test_whom_the_access_list_does_not_name_is_told_so(serve: Callable[..., Served]) -> None:
    node = serve("--access", f"uid:{os.getuid() + 1}=admin")
    with pytest.raises(TurnedAway) as refused:
        node.client(timeout_s=5).get_capacity()
    assert isinstance(refused.value, NotAllowed)
    assert refused.value.exit_code == 4
    code, text = told(node.target)
    assert code == 4
    assert f"uid {os.getuid()}" in text
    assert "--access" in text
    document = run("capacity", "--target", node.target, "--json").document
    assert document["problems"][0]["value"] == "refusing"


def test_who_is_not_there_is_still_unreachable(tmp_path: Path, serve: Callable[..., Served]) -> None:
    code, text = told(f"unix:{tmp_path / 'none.sock'}")
    assert (code, "there is no socket" in text) == (3, True)
    dead = serve()
    dead.process.kill()
    dead.process.wait(timeout=10)
    with pytest.raises(Unreachable) as raised:
        dead.client(timeout_s=5).get_capacity()
    assert not isinstance(raised.value, TurnedAway)
    assert told(dead.target)[0] == 3
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        code, text = told(f"127.0.0.1:{free.getsockname()[1]}")
    assert (code, "nothing answers" in text) == (3, True)


def test_each_misfit_of_certificates_has_its_own_words(serve: Callable[..., Served], tmp_path: Path) -> None:
    ours, others = tmp_path / "ours", tmp_path / "others"
    ours.mkdir()
    others.mkdir()
    authority, other = Authority(ours).begin(), Authority(others).begin()
    node = authority.issue("node", "DNS:localhost,IP:127.0.0.1")
    router = authority.issue("router", "URI:spiffe://here/router")
    stranger = authority.issue("stranger", "DNS:stranger.example")
    alien = other.issue("alien", "URI:spiffe://here/router")
    served = serve(
        *("--listen", "0.0.0.0:0", "--tls-cert", str(node.cert), "--tls-key", str(node.key)),
        *("--tls-client-ca", str(authority.folder / "ca.pem"), "--access", "cert:spiffe://here/router=router"),
    )
    target = port_of(served).replace("localhost", "127.0.0.1")  # one address: a name may have two
    plain = serve("--listen", "127.0.0.1:0", name="plain")
    port = next(part.rstrip(";,") for part in plain.ready.split() if part.startswith("127.0.0.1:"))
    cases = {
        "not on the list": (told(target, stranger), 4, "names no name of this client's certificate"),
        "of another authority": (
            told(target, Tls(ca=authority.folder / "ca.pem", cert=alien.cert, key=alien.key)),
            4,
            "refuses this client's certificate",
        ),
        "another --ca": (told(target, Tls(ca=alien.ca, cert=router.cert, key=router.key)), 3, "is not believed"),
        "another name": (told(target.replace("127.0.0.1", "127.0.0.2"), router), 3, "certificate of another name"),
        "another name than was asked for": (
            told(target, replace(router, server_name="decode.example")),
            3,
            "certificate of another name",
        ),
        "no certificate": (told(target), 4, "it wants TLS"),
        "TLS to a plain port": (told(port, router), 3, "speaks no TLS"),
        "another's key": (told(target, Tls(ca=router.ca, cert=router.cert, key=stranger.key)), 2, "--key"),
    }
    wrong = [(case, seen) for case, (seen, code, words) in cases.items() if seen[0] != code or words not in seen[1]]
    assert not wrong
    assert (
        run(
            "capacity", "--target", target, "--ca", str(router.ca), "--cert", str(router.cert), "--key", str(router.key)
        ).code
        == 0
    )


def test_a_key_that_fits_no_certificate_is_told_before_dialling(tmp_path: Path) -> None:
    authority = Authority(tmp_path).begin()
    one, two = authority.issue("one", "DNS:one"), authority.issue("two", "DNS:two")
    with pytest.raises(InvalidInput, match="is not the key of the certificate"):
        Client("localhost:1", tls=Tls(ca=one.ca, cert=one.cert, key=two.key))
    (tmp_path / "junk").write_text("junk")
    with pytest.raises(InvalidInput) as refused:
        Client("localhost:1", tls=Tls(ca=tmp_path / "junk", cert=one.cert, key=tmp_path / "junk"))
    assert [problem.field for problem in refused.value.problems] == ["ca", "key"]


AS_NOBODY = """
import os, sys
from hisparse_svc import Client, HiSparseError, Unreachable
from hisparse_svc.engine import HostPool
os.setgid(65534), os.setuid(65534)
for ask in (lambda: HostPool.attach(sys.argv[1]), lambda: Client(sys.argv[1]).get_capacity()):
    try:
        ask()
    except HiSparseError as refused:
        print(refused.exit_code, refused)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_is_told_of_the_folders_mode(serve: Callable[..., Served], tmp_path: Path) -> None:
    node = serve()
    tmp_path.chmod(0o700)
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, node.target], capture_output=True, text=True, check=False, timeout=60
    )
    attach, call = done.stdout.splitlines()
    assert "--allow-uid" in attach, done
    assert all("uid 65534" in line and "folder" in line and line.startswith("3 ") for line in (attach, call)), done
