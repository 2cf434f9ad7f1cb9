"""Where a fleet's nodes are read from. Each directory is a class with `follow`; `read` makes one of a text.

::

    unix:/run/a.sock,10.0.0.7:7411      StaticList        named one by one
    file:/etc/hisparse/nodes            WatchedFile       one a line, read again when it changes
    dns:decode.pool.svc:7411            DnsName           every address of a name
    kubernetes:NAMESPACE/SERVICE:PORT   EndpointSlices    the ready endpoints of a Service
    kubernetes-nodes:NAMESPACE          KubernetesNodes   what the nodes of a namespace write of themselves
"""

from __future__ import annotations

import difflib
import re

from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.fleet.directories.dns import DnsName
from hisparse_svc.fleet.directories.endpoint_slices import EndpointSlices
from hisparse_svc.fleet.directories.kubernetes_nodes import KubernetesNodes
from hisparse_svc.fleet.directories.member import Directory, Hint, Member
from hisparse_svc.fleet.directories.static import StaticList
from hisparse_svc.fleet.directories.watched_file import WatchedFile
from hisparse_svc.kube.identity import NAMESPACE
from hisparse_svc.rpc import target as targets

__all__ = [
    "Directory",
    "DnsName",
    "EndpointSlices",
    "Hint",
    "KubernetesNodes",
    "Member",
    "StaticList",
    "WatchedFile",
    "read",
]


KINDS = {
    "file": "file:PATH",
    "dns": "dns:HOST:PORT",
    "kubernetes": "kubernetes:NAMESPACE/SERVICE:PORT",
    "kubernetes-nodes": "kubernetes-nodes:NAMESPACE",
    "unix": "unix:PATH",
}
"""How each is written; the last is a list's."""
OTHER = re.compile(r"([A-Za-z][A-Za-z0-9_-]*):([^:,=][^,=]*)")
"""One thing that looks as if it named a kind of directory."""


def read(text: str, field: str = "nodes") -> Directory:
    """Make the directory that a text names.

    Raises:
        InvalidInput: What is wrong with it.
    """
    kind, colon, rest = text.partition(":")
    if colon and kind == "file":
        return WatchedFile(rest)
    if colon and kind == "dns":
        return DnsName(rest)
    if colon and kind == "kubernetes":
        namespace, slash, service = rest.partition("/")
        service, _, port = service.partition(":")
        if not (namespace and slash and service):
            rule = "must be kubernetes:NAMESPACE/SERVICE or kubernetes:NAMESPACE/SERVICE:PORT"
            raise InvalidInput([Problem(field, f'"{text}"', rule, "write kubernetes:serving/decode:grpc")])
        return EndpointSlices(service, namespace, port=int(port) if port.isdecimal() else port or None)
    if colon and kind == "kubernetes-nodes":
        if NAMESPACE.fullmatch(rest) is None:
            rule = "must be kubernetes-nodes:NAMESPACE"
            raise InvalidInput([Problem(field, f'"{text}"', rule, "write kubernetes-nodes:serving")])
        return KubernetesNodes(rest)
    other = OTHER.fullmatch(text)
    if other is not None and targets.HOST_PORT.fullmatch(text) is None and other[1] != "unix":
        near = difflib.get_close_matches(other[1], KINDS, 1)
        remedy = (
            f"did you mean {near[0]}:{other[2]}?" if near else f"write one of {', '.join(KINDS.values())}, or a list"
        )
        raise InvalidInput([Problem(field, f'"{text[:200]}"', "is neither a node nor a kind of directory", remedy)])
    return StaticList(part for part in text.split(",") if part.strip())
