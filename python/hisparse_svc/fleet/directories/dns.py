"""A fleet behind one name: every address of it is a node. A headless Service of Kubernetes is such a name."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.fleet.directories.member import Member
from hisparse_svc.rpc import target as targets
from hisparse_svc.rpc.refusals import Unreachable

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

LOOK_S = 5.0
"""Between two questions to the resolver, which keeps answers of its own."""


class DnsName:
    """Every address of a host name, on one port. Over TLS the certificates must name the addresses.

    Args:
        name: `HOST:PORT`.
        look_s: Seconds between two questions.

    Raises:
        InvalidInput: It is no `HOST:PORT`.
    """

    def __init__(self, name: str, *, look_s: float = LOOK_S) -> None:
        found = targets.HOST_PORT.fullmatch(name)
        if found is None or not 0 < int(found[2]) < 1 << 16:
            raise InvalidInput([Problem("dns", f'"{name}"', "must be HOST:PORT", "write dns:decode.svc.local:7411")])
        self.host, self.port = found[1].strip("[]"), int(found[2])
        self.look_s = look_s

    def follow(self, closing: threading.Event) -> Iterator[tuple[Member, ...]]:
        """Give the addresses now, and after every change.

        Raises:
            Unreachable: The name has no address.
        """
        told: tuple[Member, ...] | None = None
        while not closing.is_set():
            members = self._look()
            if members != told:
                told = members
                yield members
            closing.wait(self.look_s)

    def _look(self) -> tuple[Member, ...]:
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError as failure:
            what = f"the name {self.host} has no address: {failure.strerror or failure}"
            raise Unreachable(f"{what}; name another one, or start the nodes behind it") from None
        addresses = sorted({str(entry[4][0]) for entry in found})
        shown = [f"[{address}]:{self.port}" if ":" in address else f"{address}:{self.port}" for address in addresses]
        return tuple(Member(address, address) for address in shown)

    def __str__(self) -> str:
        """Say where the members come from."""
        return f"the name {self.host}"
