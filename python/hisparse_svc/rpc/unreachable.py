"""Why no call got through: nobody there, not let in, or certificates that do not fit each other.

::

    UNAVAILABLE ─┬─ the path may not be entered ─────────► Unreachable: run as its user
                 ├─ TLS: this side believes not that side ► Unreachable: name its authority, dial its name
                 ├─ TLS: that side believes not this side ► TurnedAway: show another certificate
                 ├─ connected, and closed before a call ──► TurnedAway: the access list
                 └─ all else ─────────────────────────────► Unreachable: start it

gRPC says which in its text alone. A text that it changes one day ends in the last line, which is still true.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from hisparse_svc.rpc.refusals import TurnedAway, Unreachable

if TYPE_CHECKING:
    from pathlib import Path

    from hisparse_svc.errors import HiSparseError
    from hisparse_svc.rpc.target import Target

START = "start it with `hisparse-svc serve`, or name another target"

CONNECTING = "failed to connect to all addresses"
"""How the text begins where no connection came about; a call that was under way breaks with another one."""

CLOSED_AT_ONCE = re.compile(r"Socket closed|reset by peer|Broken pipe|End of TCP stream")
CERTIFICATE_VERIFY = re.compile(r"CERTIFICATE_VERIFY_FAILED(?:: ([^:]+))?")


def to_error(target: Target, text: str, *, secure: bool) -> Unreachable:
    """Give the exception for a call that ended before the service saw it.

    Args:
        target: Where it went.
        text: What gRPC says of it.
        secure: Whether it went over TLS.
    """
    found = _why(target, text, secure=secure)
    found.unsent = CONNECTING in text
    return found


def _why(target: Target, text: str, *, secure: bool) -> Unreachable:
    if target.socket is not None:
        refused = not_for_this_user(target.socket)
        if refused is not None:
            return Unreachable(refused)
        if not target.socket.is_socket():
            return Unreachable(f"there is no socket at {target.socket}; {START}")
    elif secure and (found := _of_certificates(target, text)) is not None:
        return found
    if CONNECTING in text and CLOSED_AT_ONCE.search(text):
        return TurnedAway(_turned_away(target, secure=secure))
    where = target if target.socket is None else f"the socket {target.socket}"
    return _NothingAnswers(f"nothing answers at {where}; {START}")


class _NothingAnswers(Unreachable):
    """All that can be said; also where a name has two addresses and only the other one is listened at."""


def clearer(before: HiSparseError | None, now: HiSparseError) -> HiSparseError:
    """Give what says more of two tries: each tells of the address that it tried last."""
    return before if isinstance(before, Unreachable) and isinstance(now, _NothingAnswers) else now


def not_for_this_user(path: Path) -> str | None:
    """Say why this user cannot dial a socket that may be there, where its mode or that of its folder tells."""
    uid = os.geteuid()
    remedy = f"run as its user, join its group, or have its mode and that of its folder let uid {uid} in"
    try:
        path.stat()
    except PermissionError:
        return f"the socket {path} may not be looked at by uid {uid}; {remedy}"
    except OSError:
        return None
    if not os.access(path, os.W_OK, effective_ids=True):
        return f"the socket {path} may not be used by uid {uid}; {remedy}"
    return None


def _of_certificates(target: Target, text: str) -> Unreachable | None:
    if found := CERTIFICATE_VERIFY.search(text):
        why = found[1] or "it cannot be verified"
        remedy = "give the authority that signed it (`--ca`), or name the right target"
        return Unreachable(f"the certificate of the service at {target} is not believed: {why.strip()}; {remedy}")
    if "Hostname Verification" in text:
        remedy = "dial a name that is in it, or say which one it is (`--server-name`)"
        return Unreachable(f"the service at {target} shows a certificate of another name; {remedy}")
    if "WRONG_VERSION_NUMBER" in text:
        return Unreachable(f"what listens at {target} speaks no TLS; leave the certificates out, or name another port")
    if "TSI_DATA_CORRUPTED" in text or "ALERT" in text:
        remedy = "show one of an authority in its `--tls-client-ca`, which has not run out"
        return TurnedAway(f"the service at {target} refuses this client's certificate; {remedy}")
    return None


def _turned_away(target: Target, *, secure: bool) -> str:
    closed = f"the service at {target} closed the connection before any call"
    log = "its log says which"
    if target.socket is not None:
        uid = os.geteuid()
        return (
            f"{closed}: its access list does not name uid {uid}, or its bounds on connections are reached; {log}: "
            + (f"have `--access` name this user, such as uid:{uid}=router")
        )
    if secure:
        why = "its access list names no name of this client's certificate, or its bounds on connections are reached"
        return f"{closed}: {why}; {log}: have `--access` name one, such as cert:NAME=router"
    why = "it wants TLS, or its access list does not name loopback"
    return f"{closed}: {why}; {log}: give --ca, --cert and --key, or have `--access` name loopback=router"
