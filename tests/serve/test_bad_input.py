"""What users get wrong, through the client and the command line: each answered by name, with what to do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hisparse_svc import Client, InvalidInput, NeverFits, OtherTenant, QuotaExceeded, StaleEpoch, Unreachable

from tests.conftest import Run, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.serve.conftest import Served


def test_a_prompt_longer_than_can_ever_fit_names_the_limit(node: Served) -> None:
    with pytest.raises(NeverFits) as raised:
        node.client().admit(10_000_000)
    assert raised.value.limit
    assert raised.value.limit_value
    told = node.cli("admit", "--prompt-tokens", "10000000")
    assert told.code == 4
    assert "never fits" in told.err


@pytest.mark.parametrize("tokens", [0, 2**63, 2**64 - 1])
def test_no_tokens_and_absurd_ones_are_refused(node: Served, tokens: int) -> None:
    with pytest.raises((InvalidInput, NeverFits)):
        node.client().admit(tokens)
    assert node.cli("admit", "--prompt-tokens", str(tokens)).code in (2, 4)


def test_more_than_64_bits_and_less_than_nothing_do_not_leave_the_client(node: Served) -> None:
    for tokens in (-1, 2**64):
        told = node.cli("admit", "--prompt-tokens", str(tokens))
        assert told.code == 2
        assert "prompt_tokens" in told.err


def test_another_tenants_lease_is_not_released(client: Client) -> None:
    held = client.admit(100, tenant="a")
    with pytest.raises(OtherTenant, match="; "):
        client.release(held.lease.id, tenant="b")
    assert not client.release(held.lease.id, tenant="a").already_released


def test_a_stale_epoch_is_refused_with_the_current_one(client: Client) -> None:
    held = client.admit(100)
    with pytest.raises(StaleEpoch) as raised:
        client.commit(held.lease.id, held.lease.epoch + 7)
    assert raised.value.current_epoch == held.lease.epoch
    with pytest.raises(StaleEpoch):
        client.admit(100, epoch=held.lease.epoch + 7)


@pytest.mark.parametrize("digest", [b"", b"short", bytes(33)])
def test_a_malformed_hash_is_named_by_its_place(client: Client, digest: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"prefix_hashes\[1\]"):
        client.admit(1_000, prefix_hashes=[bytes(32), digest])


def test_a_hash_that_is_no_hexadecimal_is_refused_by_the_flags_name(node: Served) -> None:
    told = node.cli("admit", "--prompt-tokens", "100", "--prefix-hash", "xyz")
    assert (told.code, told.errors[0].split()[0]) == (2, "--prefix-hash")


def test_a_service_that_is_not_there_is_unreachable_with_what_to_do(tmp_path: Path) -> None:
    told = run("capacity", "--target", f"unix:{tmp_path}/none.sock")
    assert told.code == 3
    assert "hisparse-svc serve" in told.err
    with pytest.raises(Unreachable, match="hisparse-svc serve"):
        Client("127.0.0.1:1", timeout_s=2).get_capacity()


def test_a_socket_in_use_is_refused_and_left_alone(node: Served, serve: Callable[..., Served]) -> None:
    del serve
    told = run("serve", "--socket", str(node.socket), "--http", "off")
    assert told.code == 2
    assert "a live server listens there" in told.err
    assert node.client().get_capacity().epoch


def test_the_socket_of_a_dead_server_is_taken_over(node: Served, serve: Callable[..., Served]) -> None:
    node.process.kill()
    node.process.wait(timeout=10)
    assert node.socket.is_socket()
    successor = serve()
    assert successor.client().get_capacity().epoch > 1


def test_a_socket_path_too_long_is_refused(tmp_path: Path) -> None:
    told = run("serve", "--socket", str(tmp_path / ("s" * 108)), "--http", "off")
    assert told.code == 2
    assert "at most 107 bytes" in told.err


def test_a_port_in_use_is_refused(serve: Callable[..., Served], tmp_path: Path) -> None:
    first = serve("--listen", "127.0.0.1:0", name="first")
    port = next(address for address in first.client().server_info().addresses if address.startswith("127."))
    told = run("serve", "--socket", str(tmp_path / "second.sock"), "--http", "off", "--listen", port)
    assert told.code == 2
    assert "the port is in use" in told.err
    assert not (tmp_path / "second.sock").exists()


def test_an_address_that_is_not_loopback_is_refused(tmp_path: Path) -> None:
    told = run("serve", "--socket", str(tmp_path / "s"), "--http", "off", "--listen", "0.0.0.0:7411")
    assert told.code == 2
    assert "--tls-client-ca" in told.err


def test_what_owns_no_bytes_locks_none(tmp_path: Path) -> None:
    told = run("serve", "--socket", str(tmp_path / "s"), "--backing", "none", "--mlock")
    assert told.code == 2
    assert [error.split()[0] for error in told.errors] == ["--mlock"]


def test_draining_refuses_the_new_and_keeps_the_old(node: Served) -> None:
    held = node.client().admit(100)
    assert node.cli("drain", "--json").document["leases"] == 1
    for more in ([], ["--json"]):
        assert node.cli("drain", "--wait", "0.2", *more).code == 6, "a script that upgrades next must not go on"
    told = node.cli("admit", "--prompt-tokens", "100")
    assert told.code == 4
    assert "draining" in told.err
    assert not held.release().already_released
    assert node.cli("drain", "--wait", "0.2").code == 0
    assert node.cli("drain", "--resume").code == 0
    assert node.cli("admit", "--prompt-tokens", "100").code == 0


def test_a_flag_of_serve_given_twice_adds_up_or_is_refused_but_hides_nothing(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    once = ("--listen", "127.0.0.1:0", "--seats", "2")
    told = run("serve", "--socket", str(tmp_path / "s"), *once, *once)
    assert told.code == 2
    assert [error.split()[0] for error in told.errors] == ["--listen", "--seats"]
    assert all("more than once" in error for error in told.errors)

    lists = ("--access", "loopback=router", "--access", f"uid:{os.getuid()}=router+engine+admin")
    node = serve(*lists, "--tenants", "a: seats=..1", "--tenants", "b: seats=..2", "--listen", "127.0.0.1:0")
    client = node.client()
    client.admit(5, tenant="a")
    with pytest.raises(QuotaExceeded):
        client.admit(5, tenant="a")
    address = next(address for address in client.server_info().addresses if address.startswith("127."))
    with Client(address) as over_tcp:
        assert over_tcp.get_capacity().epoch


def fields(done: Run) -> list[str]:
    """What each error names, and that each is said once."""
    assert done.code == 2, done
    return [error.split(" is ")[0] for error in done.errors]


def test_all_that_is_wrong_with_one_serve_comes_together() -> None:
    wrong = ("--host-pool", "64MiB", "--seats", "x", "--tls-key", "k", "--reclaim-window", "0", "--tenants", ";")
    told = fields(run("serve", *wrong))
    assert set(told) == {"--host-pool", "--seats", "--tls-cert", "--tls-client-ca", "--reclaim-window", "--tenants"}
    told = fields(run("serve", "--backing", "none", "--mlock", "--seats", "100"))
    assert told == ["--mlock", "--seats"]
    assert "--host-pool" not in fields(run("serve", "--kv-bytes", "q", "--host-pool", "64MiB"))  # it depends on it


def test_all_that_is_wrong_with_one_admit_comes_together() -> None:
    wrong = ("--prompt-tokens", "-5", "--max-new-tokens", "9" * 30, "--ttl", "-1", "--wait", "nan", "--target", "foo")
    told = fields(run("admit", *wrong, "--prefix-hash", "zz", "--prefix-hash", "yy", "--timeout", "x"))
    assert told == [
        *("--prefix-hash", "--prefix-hash", "--ttl", "--wait"),
        *("prompt_tokens", "max_new_tokens", "--timeout", "target"),
    ]
    assert fields(run("capacity", "--length", "0", "--length", "-1")) == ["--length", "--length"]
