"""Why a call failed, one exception per thing a caller can do about it.

::

    HiSparseError
    ├── InvalidInput                      mend the fields it names
    ├── Unreachable                       start the service, or name the right target
    │   ├── NoAnswer                      (also DeadlineExceeded) send it again: calls may be repeated
    │   └── TurnedAway                    (also NotAllowed) it is there, and lets this caller in to no call
    └── Refused
        ├── NeverFits                     send it to a larger node: waiting cannot help
        ├── PoolBusy, QuotaExceeded       again after `retry_after_s`, with `wait_s`, or on another node
        ├── Draining, Recovering, Overloaded      another node
        ├── StaleEpoch, LeaseNotFound     admit the request anew
        ├── RequestIdReused               use a request id once
        ├── OtherTenant                   name the lease's own tenant
        ├── NotThisEngine                 attach first, or give the token of a session that has ended
        ├── NotAllowed                    have the access list give the role or tenant
        ├── DeadlineExceeded              nothing was reserved: allow more time
        ├── Unsupported                   use a server that has this call
        └── ServerFault                   look into the server's log
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from hisparse_svc.errors import HiSparseError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hisparse_svc.rpc.values import Capacity


CLOSED = "this client was closed, by close() or with its node; make another one"
"""What a call on a closed client says."""


class Unreachable(HiSparseError):
    """No service answers at the target.

    Attributes:
        unsent: The call did not leave: no connection came about, so the service knows nothing of it.
    """

    exit_code = 3
    unsent = False


class Refused(HiSparseError):
    """The service answered, and the answer is no.

    Attributes:
        reason: The machine-readable word for it, such as ``POOL_BUSY``; empty where the service gave none.
        metadata: What the message says, for programs: ``pool``, ``asked``, ``available``, …
        retry_after_s: When asking again may help; `None` where it cannot.
        capacity: The node at the moment of the refusal, where the service sent it.
    """

    remedy: ClassVar[str] = "see the message"

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
        capacity: Capacity | None = None,
    ) -> None:
        super().__init__(message if "; " in message else f"{message}; {self.remedy}")
        self.reason = reason
        self.metadata = dict(metadata or {})
        self.retry_after_s = retry_after_s
        self.capacity = capacity

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with every attribute, so that a refusal crosses a process border whole."""
        return _remade, (type(self), str(self), self.__dict__)

    def facts(self) -> dict[str, Any]:
        """Give what programs go by as plain data, each `None` where this refusal has none."""
        return {
            "reason": self.reason or None,
            "retry_after_s": self.retry_after_s,
            "pool": self.metadata.get("pool"),
            "limit": self.metadata.get("limit"),
            "limit_value": self._number("value"),
        }

    def _number(self, key: str) -> int | None:
        text = self.metadata.get(key, "")
        return int(text) if text.isdecimal() else None


def _remade(kind: type[Refused], message: str, attributes: dict[str, Any]) -> Refused:
    made = kind(message)
    made.__dict__.update(attributes)
    return made


class NeverFits(Refused):
    """Too large for this node, however long one waits."""

    remedy = "shorten the request, or send it to a larger node"

    @property
    def limit(self) -> str:
        """Name of the limit that it exceeds."""
        return self.metadata.get("limit", "")

    @property
    def limit_value(self) -> int | None:
        """Value of that limit, in the unit its name ends with."""
        return self._number("value")


class PoolBusy(Refused):
    """A pool has no room now; it would have some on an idle node."""

    remedy = "try again, wait, or try another node"

    @property
    def pool(self) -> str:
        """Name of the pool without room."""
        return self.metadata.get("pool", "")


class QuotaExceeded(Refused):
    """The tenant holds as much as it may."""

    remedy = "release something of this tenant, try another node, or raise its quota: `serve --tenants`"

    @property
    def tenant(self) -> str:
        """Whose quota it is."""
        return self.metadata.get("tenant", "")

    @property
    def pool(self) -> str:
        """Name of the pool whose quota is used up."""
        return self.metadata.get("pool", "")


class StaleEpoch(Refused):
    """The pool was made anew since the lease was granted."""

    remedy = "read the capacity and admit the request again"

    @property
    def current_epoch(self) -> int | None:
        """The epoch that is valid now."""
        return self._number("current_epoch")


class Draining(Refused):
    """The node grants nothing new; what is held stays held."""

    remedy = "use another node, or `hisparse-svc drain --resume`"


class Recovering(Refused):
    """The node is starting: its pool is still being made, or it does not know all its leases yet."""

    remedy = "try again in a moment, or use another node"


class Overloaded(Refused):
    """The service sheds load."""

    remedy = "try again later, or use another node"


class LeaseNotFound(Refused):
    """The lease is unknown, has ended, or is not in a state for this."""

    remedy = "admit the request again"

    @property
    def lease_id(self) -> str:
        """The lease that was named."""
        return self.metadata.get("lease_id", "")


class RequestIdReused(Refused):
    """The request id stands for a request with other parameters."""

    remedy = "give every request an id of its own"

    @property
    def lease_id(self) -> str:
        """The lease that the id already stands for."""
        return self.metadata.get("lease_id", "")


class OtherTenant(Refused):
    """The lease belongs to another tenant."""

    remedy = "name the tenant that the lease was granted to"


class NotThisEngine(Refused):
    """The caller is not the engine's attached writer, or a token opens no ended session of this engine."""

    remedy = "attach as the writer first; a token is `HostPool.token` of a session of this engine id that has ended"


class NotAllowed(Refused):
    """The service's access list does not let this caller do that: another role is needed, or another tenant."""

    remedy = "have the service's `--access` give this caller what the message names"

    def __init__(self, message: str, **more: Any) -> None:
        # The service says the remedy itself, after a colon.
        super().__init__(message if "; " in message else message.replace(": ", "; ", 1), **more)

    @property
    def role(self) -> str:
        """The role that is needed, several with ` or ` between them; empty where it is the tenant."""
        return self.metadata.get("role", "")


class DeadlineExceeded(Refused, TimeoutError):
    """The deadline passed before a decision; nothing was reserved."""

    remedy = "allow more time"


class NoAnswer(Unreachable, DeadlineExceeded):
    """The service is silent: the deadline passed, and whether it decided is unknown."""

    remedy = "look whether it is alive, then send the call again: every call may be repeated"


class TurnedAway(Unreachable, NotAllowed):
    """The service is there and refuses the connection: the access list, or the certificate, is not for this caller."""

    exit_code = NotAllowed.exit_code


class Unsupported(Refused):
    """The server has no such call."""

    remedy = "run a server of the client's version"


class ServerFault(Refused):
    """The service failed."""

    remedy = "look into its log"


REASONS: dict[str, type[Refused]] = {
    "NEVER_FITS": NeverFits,
    "POOL_BUSY": PoolBusy,
    "QUOTA": QuotaExceeded,
    "STALE_EPOCH": StaleEpoch,
    "DRAINING": Draining,
    "RECOVERING": Recovering,
    "LEASE_NOT_FOUND": LeaseNotFound,
    "REQUEST_ID_REUSED": RequestIdReused,
    "DEADLINE": DeadlineExceeded,
    "OVERLOADED": Overloaded,
    "WRONG_ROLE": NotAllowed,
    "WRONG_TENANT": NotAllowed,
}
"""The exception of each `google.rpc.ErrorInfo.reason`; a reason not here raises `Refused` itself."""
