"""The certificates of a client, for services beyond this machine: what it shows, and which authority it believes.

::

    given  ─►  HISPARSE_CA, HISPARSE_CERT, HISPARSE_KEY  ─►  none: a plain connection, for a Unix socket or loopback
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hisparse_svc import files
from hisparse_svc.errors import InvalidInput, Problem

if TYPE_CHECKING:
    import grpc

    from hisparse_svc.rpc.target import Target

VARIABLES = {"ca": "HISPARSE_CA", "cert": "HISPARSE_CERT", "key": "HISPARSE_KEY"}

MOST_BYTES = 1 << 20
"""Largest PEM file read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tls:
    """Three PEM files.

    Attributes:
        ca: The authority that signed the service's certificate.
        cert: The client's certificate, with its chain.
        key: Its key.
    """

    ca: str | os.PathLike[str]
    cert: str | os.PathLike[str]
    key: str | os.PathLike[str]

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files.

        Raises:
            InvalidInput: One of them cannot be read.
        """
        import grpc  # noqa: PLC0415 - whoever has certificates need not have a connection yet

        texts: dict[str, bytes] = {}
        problems: list[Problem] = []
        for name in VARIABLES:
            try:
                texts[name] = files.read_text(Path(getattr(self, name)), name, most_bytes=MOST_BYTES).encode()
            except InvalidInput as refused:
                problems += refused.problems
        if problems:
            raise InvalidInput(problems)
        return grpc.ssl_channel_credentials(texts["ca"], texts["key"], texts["cert"])


def resolve(given: Tls | None, target: Target) -> Tls | None:
    """Give the certificates for a target, or those that the environment names; none for a Unix socket.

    Raises:
        InvalidInput: They are given for a Unix socket, or the environment names some of the three alone.
    """
    if target.socket is not None:
        if given is not None:
            rule = "is for TCP: who calls a Unix socket is known from the kernel"
            raise InvalidInput([Problem("tls", str(target), rule, "leave it out, or name HOST:PORT")])
        return None
    if given is not None:
        return given
    named = {name: os.environ.get(variable, "") for name, variable in VARIABLES.items()}
    if not any(named.values()):
        return None
    missing = [VARIABLES[name] for name, path in named.items() if not path]
    if missing:
        rule = "is missing: a client over TLS needs an authority, a certificate and its key"
        raise InvalidInput([Problem(variable, "missing", rule, "set all three") for variable in missing])
    return Tls(**named)


def of_flags(ca: str | None, cert: str | None, key: str | None) -> Tls | None:
    """Read the three flags, which come together or not at all.

    Raises:
        InvalidInput: Some of them are missing.
    """
    flags = {"--ca": ca, "--cert": cert, "--key": key}
    if not any(flags.values()):
        return None
    if ca and cert and key:
        return Tls(ca=ca, cert=cert, key=key)
    rule = "is missing: a client over TLS needs an authority, a certificate and its key"
    raise InvalidInput([Problem(flag, "missing", rule, "give all three") for flag, path in flags.items() if not path])
