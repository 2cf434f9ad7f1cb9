"""As what a node is published: flags, and what the downward API puts into a pod's environment.

::

    --name       POD_NAME                     --address    POD_IP and the port 7411, or a target that is HOST:PORT
    --namespace  POD_NAMESPACE                             POD_UID: the pod that owns what is written
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kube.objects import Identity
from hisparse_svc.rpc.target import HOST_PORT

if TYPE_CHECKING:
    from collections.abc import Mapping

PORT = 7411
"""Of a node's gRPC beyond its machine, as deploy/kubernetes has it."""

LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
NAMESPACE = re.compile(LABEL)
NAME = re.compile(rf"(?=.{{1,253}}$){LABEL}(\.{LABEL})*")
UID = re.compile(r"[A-Za-z0-9-]{1,63}")
RULES = {
    NAMESPACE: "must have 1 to 63 of a-z, 0-9 and -, with a letter or digit at both ends",
    NAME: "must have 1 to 253 of a-z, 0-9, - and ., with a letter or digit at both ends and beside each dot",
    UID: "must have 1 to 63 of A-Z, a-z, 0-9 and -",
}
NOWHERE = ("0.0.0.0", "[::]")  # noqa: S104 - what is refused
"""Addresses that a service listens on and that lead whoever dials them to himself."""


def read(
    variables: Mapping[str, str],
    *,
    name: str | None = None,
    namespace: str | None = None,
    address: str | None = None,
    target: str = "",
) -> Identity:
    """Put flags and environment together; a flag beats a variable.

    Args:
        variables: The environment.
        name: Of the objects.
        namespace: Where they are.
        address: Where routers reach the node.
        target: Where the publisher reaches it.

    Raises:
        InvalidInput: Everything that is missing or cannot be read.
    """
    problems: list[Problem] = []

    def check(field: str, text: str | None, rule: re.Pattern[str], remedy: str) -> str:
        if text and rule.fullmatch(text):
            return text
        shown, wrong = (f'"{text[:80]}"', RULES[rule]) if text else ("missing", "must be known")
        problems.append(Problem(field, shown, wrong, remedy))
        return ""

    told = variables.get
    beside = "set {} by the downward API, as deploy/kubernetes/components/directory does, or give the flag"
    found = Identity(
        namespace=check("--namespace", namespace or told("POD_NAMESPACE"), NAMESPACE, beside.format("POD_NAMESPACE")),
        name=check("--name", name or told("POD_NAME"), NAME, beside.format("POD_NAME")),
        address=_address(address, told("POD_IP", ""), target, problems),
        pod_uid=check("POD_UID", told("POD_UID"), UID, "unset it") if told("POD_UID") else "",
    )
    if found.pod_uid and name and name != told("POD_NAME"):
        rule = f"names another pod than POD_NAME, {told('POD_NAME', '')}, whose POD_UID is to own the object"
        problems.append(Problem("--name", f'"{name[:80]}"', rule, "leave the flag out in a pod, or unset POD_UID"))
    if problems:
        raise InvalidInput(problems)
    return found


def _address(address: str | None, pod_ip: str, target: str, problems: list[Problem]) -> str:
    text = address
    if not text and pod_ip:
        text = f"[{pod_ip}]:{PORT}" if ":" in pod_ip else f"{pod_ip}:{PORT}"
    if not text and not target.startswith("unix:"):
        text = target
    found = HOST_PORT.fullmatch(text or "")
    if found is None or not 0 < int(found[2]) < 1 << 16:
        shown = f'"{text[:80]}"' if text else "missing"
        remedy = "give --address HOST:PORT, or set POD_IP by the downward API"
        problems.append(Problem("--address", shown, "must be HOST:PORT, where routers reach the node", remedy))
        return ""
    if found[1] in NOWHERE:
        rule = "is where a service listens, and no address of one: each router would dial itself"
        remedy = "give the address of the node's machine or pod, or set POD_IP by the downward API"
        problems.append(Problem("--address", f'"{text}"', rule, remedy))
        return ""
    return found[0]
