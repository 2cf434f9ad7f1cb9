"""What no message can hold is refused by name before anything is sent; targets say what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hisparse_svc.errors import InvalidInput
from hisparse_svc.rpc import calls, values
from hisparse_svc.rpc.target import default_socket, resolve


def fields(raised: pytest.ExceptionInfo[InvalidInput]) -> list[str]:
    return [problem.field for problem in raised.value.problems]


def test_every_argument_that_does_not_fit_is_named_together() -> None:
    request = values.Request(prompt_tokens=-1, max_new_tokens=2**64, pages=1.5, prefix_hashes=["text"])  # type: ignore[arg-type, list-item]
    with pytest.raises(InvalidInput) as raised:
        calls.admit(request)
    assert fields(raised) == ["prompt_tokens", "max_new_tokens", "pages", "prefix_hashes"]
    assert "2^64" in str(raised.value)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), 1e18])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidInput):
        calls.admit(values.Request(prompt_tokens=1, ttl_s=seconds))
    with pytest.raises(InvalidInput):
        calls.admit(values.Request(prompt_tokens=1), wait_s=seconds)


def test_an_unknown_argument_of_a_plan_names_the_nearest() -> None:
    with pytest.raises(InvalidInput, match="did you mean context"):
        calls.get_budget({"model": "glm-5.2", "contex": [1]})


def test_a_request_without_an_id_gets_one_of_its_own() -> None:
    first, second = (calls.admit(values.Request(prompt_tokens=1)).request for _ in range(2))
    assert first != second


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:/run/h.sock", "unix:/run/h.sock"),
        ("unix:///run/h.sock", "unix:/run/h.sock"),
        ("unix:h.sock", "unix:h.sock"),
        ("127.0.0.1:7411", "127.0.0.1:7411"),
        ("[::1]:7411", "[::1]:7411"),
        ("node-1.example:7411", "node-1.example:7411"),
    ],
)
def test_targets_are_read_as_people_write_them(text: str, address: str) -> None:
    assert resolve(text).address == address


@pytest.mark.parametrize(
    "text", ["", "unix:", "/run/h.sock", "host", "host:", "host:0", "host:65536", "http://h:1", "a b:1"]
)
def test_a_crooked_target_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="target"):
        resolve(text)


def test_a_socket_path_too_long_is_refused_with_the_limit() -> None:
    resolve("unix:/" + "s" * 106)
    with pytest.raises(InvalidInput, match="at most 107 bytes, this one has 108"):
        resolve("unix:/" + "s" * 107)


def test_the_default_target_is_the_environments_then_the_users_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HISPARSE_TARGET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert resolve(None).socket == Path("/run/user/7/hisparse/hisparse.sock")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert default_socket().parent.name.startswith("hisparse-")
    monkeypatch.setenv("HISPARSE_TARGET", "127.0.0.1:7411")
    assert resolve(None).address == "127.0.0.1:7411"
    monkeypatch.setenv("HISPARSE_TARGET", "nonsense")
    with pytest.raises(InvalidInput, match="HISPARSE_TARGET"):
        resolve(None)
