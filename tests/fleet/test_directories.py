"""Who is in a fleet: lists, files and names, what is wrong with them, and what changes."""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hisparse_svc import InvalidInput, Unreachable
from hisparse_svc.fleet import DnsName, Member, StaticList, WatchedFile, directories

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def test_a_list_names_targets_and_may_name_nodes() -> None:
    listed = StaticList(["unix:/run/a=b.sock", "decode-0=10.0.0.7:7411", Member("c", "10.0.0.8:7411")])
    assert listed.members == (
        Member("unix:/run/a=b.sock", "unix:/run/a=b.sock"),
        Member("decode-0", "10.0.0.7:7411"),
        Member("c", "10.0.0.8:7411"),
    )


def test_every_wrong_node_is_named_together() -> None:
    with pytest.raises(InvalidInput) as raised:
        StaticList(["/run/a.sock", "a=10.0.0.7:7411", "a=10.0.0.8:7411", "b="])
    assert [problem.value for problem in raised.value.problems] == ['"/run/a.sock"', '"a"', '"b="']


def test_a_name_is_as_long_as_a_pods_may_be_and_never_cut() -> None:
    (member,) = StaticList([f"{'a' * 253}=10.0.0.7:7411"]).members
    assert member.name == "a" * 253
    with pytest.raises(InvalidInput, match="254 letters: must be at most 253 letters; name it shorter"):
        StaticList([f"{'a' * 254}=10.0.0.7:7411"])


def test_a_node_of_two_names_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r'nodes is "b": is at 10.0.0.7:7411, where a is too; name every node once'):
        StaticList(["a=10.0.0.7:7411", "a=10.0.0.7:7411", "b=10.0.0.7:7411"])


@pytest.mark.parametrize(
    ("text", "kind", "shown"),
    [
        ("unix:/run/a.sock,10.0.0.7:7411", StaticList, "the list of nodes"),
        ("file:/etc/nodes", WatchedFile, "the file /etc/nodes"),
        ("dns:localhost:7411", DnsName, "the name localhost"),
    ],
)
def test_a_text_names_its_directory(text: str, kind: type, shown: str) -> None:
    read = directories.read(text)
    assert (type(read), str(read)) == (kind, shown)


@pytest.mark.parametrize("text", ["dns:localhost", "file:", "kubernetes:decode", "nonsense"])
def test_a_crooked_directory_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        directories.read(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("kubernetes-node:serving", "did you mean kubernetes-nodes:serving?"),
        ("files:/etc/nodes", "did you mean file:/etc/nodes?"),
        ("k8s:serving", "kubernetes-nodes:NAMESPACE"),
        ("http://10.0.0.7:7411", "unix:PATH, or a list"),
        ("dekode_ä=10.0.0.7:7411", "write decode-0=10.0.0.7:7411"),
    ],
)
def test_a_mistyped_kind_or_name_is_answered_with_what_may_be_meant(text: str, meant: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        directories.read(text)
    (problem,) = refused.value.problems
    assert meant in problem.remedy


def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path, closing = tmp_path / "nodes", threading.Event()
    path.write_text("# two nodes\na=10.0.0.1:1\n\nb=10.0.0.2:1  # the second\n")
    following = WatchedFile(path, look_s=0.01).follow(closing)
    assert [member.name for member in next(following)] == ["a", "b"]

    def replace() -> None:
        (tmp_path / "new").write_text("b=10.0.0.2:1\nc=10.0.0.3:1\n")
        os.replace(tmp_path / "new", path)  # noqa: PTH105 - what `mv` does

    timer = threading.Timer(0.05, replace)
    timer.start()
    assert [member.name for member in next(following)] == ["b", "c"]
    timer.join()
    closing.set()
    assert list(following) == []


def test_a_file_that_cannot_be_read_names_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "nodes"
    with pytest.raises(InvalidInput):
        next(WatchedFile(path).follow(threading.Event()))
    two = "c=unix:/run/c.sock,d=10.0.0.4:1"
    path.write_text(f"a=10.0.0.1:1\nno target\nalso: none\n{two}\n{'x' * 300}\n")
    with pytest.raises(InvalidInput) as raised:
        next(WatchedFile(path).follow(threading.Event()))
    values = [problem.value for problem in raised.value.problems]
    fields = [problem.field for problem in raised.value.problems]
    assert fields == [f"{path}, line {number}," for number in (2, 3, 4, 5)]
    assert values == ['"no target"', '"also: none"', f'"{two[2:]}"', f'"{"x" * 253}…"']


def test_a_file_that_became_empty_is_not_a_fleet_of_nobody(tmp_path: Path) -> None:
    path = tmp_path / "nodes"
    path.write_text("")
    listed = WatchedFile(path)
    assert next(listed.follow(threading.Event())) == (), "at the start it may be"
    path.write_text("a=10.0.0.1:1\n")
    assert [member.name for member in next(listed.follow(threading.Event()))] == ["a"]
    path.write_text("")  # what `>` does before the first line is there, and all that it does where the disk is full
    with pytest.raises(InvalidInput, match="has become empty, and named nodes before"):
        next(listed.follow(threading.Event()))
    path.write_text("# nobody\n")
    assert next(listed.follow(threading.Event())) == ()


def test_every_address_of_a_name_is_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([["10.0.0.2", "10.0.0.1", "10.0.0.1"], ["10.0.0.2", "fd00::1"]])

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        assert (host, port) == ("decode.pool", 7411)
        return [(None, None, None, "", (address, port)) for address in next(answers)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    following: Iterator[tuple[Member, ...]] = DnsName("decode.pool:7411", look_s=0.01).follow(threading.Event())
    assert [member.target for member in next(following)] == ["10.0.0.1:7411", "10.0.0.2:7411"]
    assert [member.target for member in next(following)] == ["10.0.0.2:7411", "[fd00::1]:7411"]


def test_a_name_without_an_address_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: Any, **__: Any) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(Unreachable, match=r"the name no\.such has no address"):
        next(DnsName("no.such:7411").follow(threading.Event()))
