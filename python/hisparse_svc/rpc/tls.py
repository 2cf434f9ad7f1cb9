"""The certificates of a client, for services beyond this machine: what it shows, and which authority it believes.

::

    given  ─►  HISPARSE_CA, HISPARSE_CERT, HISPARSE_KEY  ─►  none: a plain connection, for a Unix socket or loopback
               HISPARSE_SERVER_NAME

A service is dialled by a name or address that is in its certificate, or by any other and a `server_name` that is: pods
share one certificate, and have an address each.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hisparse_svc import files
from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.rpc.target import Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    import grpc

VARIABLES = {"ca": "HISPARSE_CA", "cert": "HISPARSE_CERT", "key": "HISPARSE_KEY"}

NAME_VARIABLE = "HISPARSE_SERVER_NAME"

HOST_NAME = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*"
)

MOST_BYTES = 1 << 20
"""Largest PEM file read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tls:
    """Three PEM files, and the name to look for.

    Attributes:
        ca: The authority that signed the service's certificate.
        cert: The client's certificate, with its chain.
        key: Its key.
        server_name: DNS name that must be in the service's certificate, instead of the target's own.
        names: What errors call each of them; by default as here.
    """

    ca: str | os.PathLike[str]
    cert: str | os.PathLike[str]
    key: str | os.PathLike[str]
    server_name: str = ""
    names: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files.

        Raises:
            InvalidInput: Each that cannot be read, and a key that does not fit its certificate.
        """
        import grpc  # noqa: PLC0415 - whoever has certificates need not have a connection yet

        texts: dict[str, bytes] = {}
        problems: list[Problem] = []
        for name in VARIABLES:
            try:
                texts[name] = files.read_text(
                    Path(getattr(self, name)), self.names.get(name, name), most_bytes=MOST_BYTES
                ).encode()
            except InvalidInput as refused:
                problems += refused.problems
        if self.server_name and HOST_NAME.fullmatch(self.server_name) is None:
            shown = f'"{self.server_name[:80]}"'
            rule, remedy = "must be a DNS name", "write the name that is in the certificate, as decode.serving.svc"
            problems.append(Problem(self.names.get("server_name", "server_name"), shown, rule, remedy))
        if texts.keys() == VARIABLES.keys():
            problems += self._misfits(texts["ca"].decode())
        if problems:
            raise InvalidInput(problems)
        return grpc.ssl_channel_credentials(texts["ca"], texts["key"], texts["cert"])

    def _misfits(self, authority: str) -> list[Problem]:
        """Say what gRPC would only find while it dials, and write about to stderr in words of its own."""
        import ssl  # noqa: PLC0415 - as above

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        problems = []
        try:
            context.load_verify_locations(cadata=authority)
        except (ssl.SSLError, ValueError):
            rule = "must hold certificates in PEM"
            problems.append(
                Problem(self.names.get("ca", "ca"), f'"{self.ca}"', rule, "name the file of the service's authority")
            )
        try:
            context.load_cert_chain(self.cert, self.key, password=lambda: "")  # a secret one is not asked for
        except ssl.SSLError as failure:
            rule = "must be a key in PEM, without a password, that fits the certificate"
            if failure.reason == "KEY_VALUES_MISMATCH":
                rule = f"is not the key of the certificate {self.cert}"
            problems.append(
                Problem(self.names.get("key", "key"), f'"{self.key}"', rule, "name the two files that belong together")
            )
        return problems


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
    server_name = os.environ.get(NAME_VARIABLE, "")
    if not any(named.values()):
        return None
    missing = [VARIABLES[name] for name, path in named.items() if not path]
    if missing:
        rule = "a client over TLS needs an authority, a certificate and its key"
        raise InvalidInput([Problem(variable, "missing", rule, "set all three") for variable in missing])
    return Tls(**named, server_name=server_name, names={**VARIABLES, "server_name": NAME_VARIABLE})


def of_flags(ca: str | None, cert: str | None, key: str | None, server_name: str | None = None) -> Tls | None:
    """Read the three flags, which come together or not at all, and the name; where a flag is not, its variable counts.

    Raises:
        InvalidInput: Some of them are missing.
    """
    flags = {"--ca": ca, "--cert": cert, "--key": key}
    names = {"server_name": "--server-name" if server_name else NAME_VARIABLE}
    name = server_name or os.environ.get(NAME_VARIABLE, "")
    if not any(flags.values()):
        if not server_name:
            return None
        found = resolve(None, Target("", None))
        if found is None:
            rule = "is the name in a certificate, and no certificates are given"
            raise InvalidInput([Problem("--server-name", f'"{server_name[:80]}"', rule, "give --ca, --cert and --key")])
        return replace(found, server_name=name, names={**found.names, **names})
    if ca and cert and key:
        names |= {part: f"--{part}" for part in VARIABLES}
        return Tls(ca=ca, cert=cert, key=key, server_name=name, names=names)
    rule = "a client over TLS needs an authority, a certificate and its key"
    raise InvalidInput([Problem(flag, "missing", rule, "give all three") for flag, path in flags.items() if not path])
