"""As what a node is published: flags, the downward API, and everything that may be missing."""

from __future__ import annotations

import pytest
from hisparse_svc import InvalidInput
from hisparse_svc.kube import identity
from hisparse_svc.kube.objects import Identity

POD = {"POD_NAME": "decode-0", "POD_NAMESPACE": "serving", "POD_UID": "u-1", "POD_IP": "10.0.0.7"}


def problems(**given: str | None) -> list[tuple[str, str]]:
    variables = {key: value for key, value in given.items() if key.isupper() and value is not None}
    flags = {key: value for key, value in given.items() if not key.isupper()}
    with pytest.raises(InvalidInput) as refused:
        identity.read(variables, **{"target": "unix:/run/h.sock", **flags})  # type: ignore[arg-type]
    return [(problem.field, problem.value) for problem in refused.value.problems]


def test_a_pod_says_it_all() -> None:
    assert identity.read(POD) == Identity("serving", "decode-0", "10.0.0.7:7411", "u-1")
    assert identity.read({**POD, "POD_IP": "fd00::7"}).address == "[fd00::7]:7411"


def test_outside_of_one_flags_do_and_a_target_that_routers_can_dial_is_the_address() -> None:
    told = identity.read({}, name="rack7-a", namespace="serving", target="10.0.0.9:7411")
    assert told == Identity("serving", "rack7-a", "10.0.0.9:7411")
    assert identity.read(POD, address="node.example:7000", namespace="other") == Identity(
        "other", "decode-0", "node.example:7000", "u-1"
    )


def test_everything_that_is_missing_is_said_at_once() -> None:
    assert problems() == [("--namespace", "missing"), ("--name", "missing"), ("--address", "missing")]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"namespace": "Serving"}, "--namespace"),
        ({"namespace": "a/b"}, "--namespace"),
        ({"name": "Decode_0"}, "--name"),
        ({"name": "x" * 254}, "--name"),
        ({"address": "10.0.0.7"}, "--address"),
        ({"address": "10.0.0.7:0"}, "--address"),
        ({"address": "10.0.0.7:65536"}, "--address"),
        ({"address": "unix:/run/h.sock"}, "--address"),
        ({"address": "0.0.0.0:7411"}, "--address"),
        ({"address": "[::]:7411"}, "--address"),
        ({"POD_UID": "not a uid"}, "POD_UID"),
    ],
)
def test_what_cannot_be_read_is_named(given: dict[str, str], field: str) -> None:
    pod = {key: value for key, value in POD.items() if key != "POD_UID"}
    assert [name for name, _ in problems(**{**pod, **given})] == [field]


def test_a_name_that_kubernetes_does_not_take_is_answered_with_the_rule() -> None:
    with pytest.raises(InvalidInput, match="must have 1 to 253 of a-z, 0-9, - and"):
        identity.read(POD | {"POD_NAME": "Nö"})


def test_a_pod_does_not_own_the_object_of_another_name() -> None:
    assert problems(**POD, name="decode-1") == [("--name", '"decode-1"')]
