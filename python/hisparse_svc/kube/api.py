"""Calls to the API server. The official client finds the cluster and its credentials; the requests are made here.

::

    pod's service account, else kubeconfig ─► Configuration ─► Api.get, apply, watch ─► plain documents
                                                                        └─► Away, Rejected

The typed calls of that client changed from one release to the next; its configuration and its connections did not.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import ssl
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlencode

from hisparse_svc.errors import HiSparseError, InvalidInput, Problem
from hisparse_svc.rpc.refusals import NotAllowed, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime

CALL_S = 10.0
"""Longest that one call may take."""
QUIET_S = 15.0
"""How long past its own end a watch may say nothing before its connection counts as broken."""
MOST_TEXT = 500
"""Letters of a server's message that are kept."""

TRUST = "look whether the authority that is configured, ca.crt or certificate-authority, is this cluster's"
"""What to do about a certificate."""

APPLY = "application/apply-patch+yaml"
"""Server-side apply; JSON is YAML."""

Document = dict[str, Any]


class Away(Unreachable):
    """The API server does not answer."""


class Untrusted(Away):
    """Something answers, and its certificate cannot be checked or is not the API server's."""


class Rejected(HiSparseError):
    """The API server answered, and the answer is no.

    Attributes:
        status: The code of HTTP.
        reason: Kubernetes' word for it, such as `NotFound`; empty where it gave none.
        text: What it says.
        retry_after_s: When it wants to be asked again; `None` where it does not say.
    """

    exit_code: ClassVar[int] = 4

    def __init__(self, status: int, reason: str, text: str, retry_after_s: float | None = None) -> None:
        self.status, self.reason, self.text, self.retry_after_s = status, reason, text, retry_after_s
        super().__init__(f"{status} {reason}: {text}" if text else f"{status} {reason}")


def unreadable(what: str, failure: Rejected, *, right: str, missing: str = "") -> NotAllowed | Unreachable:
    """Give what a reader is to be told of a refusal: `what` cannot be read, why, and what to do.

    Args:
        what: What was to be read.
        failure: The API server's answer.
        right: What to do where the account may not.
        missing: What to do where there is no such kind.
    """
    told = f"{what} cannot be read: {failure}"
    if failure.status == 401:
        return NotAllowed(f"{told}; look whether the token or certificate is this cluster's, and not too old")
    if failure.status == 403:
        return NotAllowed(f"{told}; {right}")
    if failure.status == 404 and missing:
        return Unreachable(f"{told}; {missing}")
    return Unreachable(f"{told}; look at the API server")


class Events:
    """What a watch tells, one document at a time; as a context manager it closes its connection."""

    def __init__(self, response: Any, away: Callable[[Exception], Away]) -> None:
        self._response, self._away = response, away
        self._errors = importlib.import_module("urllib3.exceptions")

    def __iter__(self) -> Iterator[Document]:
        """Give each event until the server ends the watch.

        Raises:
            Away: The connection broke.
            Rejected: The server ends it with an error; 410 where the version has become too old.
        """
        kept = b""
        try:
            for part in self._response.stream(amt=None, decode_content=True):
                *lines, kept = (kept + part).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield self._event(line)
        except (self._errors.HTTPError, OSError) as failure:
            raise self._away(failure) from None

    def _event(self, line: bytes) -> Document:
        event = _document(line)
        if event.get("type") == "ERROR":
            told = event.get("object") or {}
            raise Rejected(int(told.get("code", 500)), told.get("reason", ""), _short(told.get("message", "")))
        return event

    def __enter__(self) -> Events:
        """Give the watch itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close its connection."""
        self._response.close()

    def wake(self) -> None:
        """End it, from any thread: a reader that blocks wakes up where the connection can be shut down."""
        shutdown = getattr(self._response, "shutdown", None)  # of urllib3 2.3
        if shutdown is not None:
            with contextlib.suppress(Exception):  # it has ended by itself
                shutdown()


class Api:
    """One API server, as one account.

    Args:
        configuration: A `kubernetes.client.Configuration` of one's own; by default the pod's service account, else the
            kubeconfig.

    Raises:
        InvalidInput: The official client is not installed, or no cluster is configured.
    """

    def __init__(self, configuration: Any = None) -> None:
        client = client_library()
        self._configuration = configuration if configuration is not None else configured(client)
        self._connections = client.ApiClient(self._configuration).rest_client.pool_manager
        self._errors = importlib.import_module("urllib3.exceptions")
        self._unconfigured = importlib.import_module("kubernetes.config").ConfigException

    def get(self, path: str, query: Mapping[str, Any]) -> tuple[Document, datetime | None]:
        """Read; gives what is there, and the server's own time.

        Raises:
            Away: It does not answer.
            Rejected: It says no.
        """
        response = self._send("GET", path, query, timeout_s=CALL_S)
        return _document(response.data), _date(response.headers.get("Date"))

    def apply(self, path: str, body: Document, *, manager: str, timeout_s: float = CALL_S) -> Document:
        """Make an object, or the fields of it that `body` names, as they are there; fields of others stay.

        Raises:
            Away: It does not answer.
            Rejected: It says no.
        """
        return self._patch(path, body, {"fieldManager": manager}, timeout_s)

    def look(self, path: str, body: Document, *, manager: str, timeout_s: float = CALL_S) -> Document:
        """Give what `apply` would leave there, and leave all as it is: so an account sees that may only write.

        Raises:
            Away: It does not answer.
            Rejected: It says no, also where `body` alone would be no object and none is there.
        """
        return self._patch(path, body, {"fieldManager": manager, "dryRun": "All"}, timeout_s)

    def _patch(self, path: str, body: Document, query: dict[str, str], timeout_s: float) -> Document:
        query = {**query, "force": "true"}
        return _document(self._send("PATCH", path, query, timeout_s=timeout_s, body=json.dumps(body).encode()).data)

    def watch(self, path: str, query: Mapping[str, Any], *, longest_s: int) -> Events:
        """Open a watch from a version on; the server ends it after `longest_s`.

        Raises:
            Away: It does not answer.
            Rejected: It says no; 410 where the version is too old.
        """
        whole = {**query, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": longest_s}
        return Events(self._send("GET", path, whole, timeout_s=longest_s + QUIET_S, stream=True), self._away)

    def close(self) -> None:
        """Close the connections that nobody uses now; a later call opens another one."""
        self._connections.clear()

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any],
        *,
        timeout_s: float,
        body: bytes | None = None,
        stream: bool = False,
    ) -> Any:
        headers = {"Accept": "application/json", "User-Agent": "hisparse-svc", **self._credentials()}
        if body is not None:
            headers["Content-Type"] = APPLY
        timeout = importlib.import_module("urllib3").Timeout(connect=min(timeout_s, CALL_S), read=timeout_s)
        url = f"{self._configuration.host.rstrip('/')}{path}?{urlencode(query)}"
        try:
            response = self._connections.request(
                method, url, body=body, headers=headers, timeout=timeout, retries=False, preload_content=not stream
            )
            if not 200 <= response.status < 300:
                raise rejected(response.status, response.reason, response.data, response.headers.get("Retry-After"))
        except (self._errors.HTTPError, OSError) as failure:
            raise self._away(failure) from None
        return response

    def _credentials(self) -> dict[str, str]:
        """Give the account's token, which the configuration reads again as it is renewed."""
        try:
            found = self._configuration.auth_settings().values()
        except (OSError, self._unconfigured) as failure:
            raise Rejected(401, "NoCredentials", _short(f"they cannot be read: {failure}")) from None
        return {each["key"]: each["value"] for each in found if each["in"] == "header"}

    def _away(self, failure: Exception) -> Away:
        what = str(getattr(failure, "reason", None) or failure)[:MOST_TEXT]
        where = self._configuration.host
        if isinstance(failure, (ssl.SSLError, self._errors.SSLError)):
            return Untrusted(f"the Kubernetes API at {where} cannot be trusted: {what}; {TRUST}")
        return Away(f"the Kubernetes API at {where} does not answer: {what}; look whether it is up and let through")


def _document(data: bytes) -> Document:
    try:
        found = json.loads(data)
    except ValueError:
        raise Rejected(502, "NotJson", _short(data.decode("utf-8", "replace"))) from None
    return found if isinstance(found, dict) else {}


def rejected(status: int, phrase: str | None, data: bytes, retry_after: str | None = None) -> Rejected:
    """Give what an answer that is no success says: of a missing right, whose account lacks which one, and where."""
    try:
        told = json.loads(data)
    except ValueError:
        told = {}
    told = told if isinstance(told, dict) else {}
    text = told.get("message") or data.decode("utf-8", "replace")
    after = float(retry_after) if retry_after and retry_after.isdecimal() else None
    return Rejected(status, told.get("reason") or phrase or "", _short(text), after)


def _short(text: str) -> str:
    return " ".join(text.split())[:MOST_TEXT]


def _date(text: str | None) -> datetime | None:
    try:
        return parsedate_to_datetime(text) if text else None
    except ValueError:
        return None


def client_library() -> Any:
    """Import the official client.

    Raises:
        InvalidInput: It is not installed.
    """
    try:
        return importlib.import_module("kubernetes.client")
    except ImportError:
        rule = "this needs the official Kubernetes client, which is not installed"
        problem = Problem("package kubernetes", "missing", rule, "pip install 'hisparse-svc[kubernetes]'")
        raise InvalidInput([problem]) from None


def configured(client: Any) -> Any:
    """Give the configuration of the pod's service account, else of the kubeconfig.

    Raises:
        InvalidInput: There is neither.
    """
    config = importlib.import_module("kubernetes.config")
    settings = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        named = os.environ.get("KUBECONFIG", "")
        where = f"the file {named}" if named else "~/.kube/config"
        try:
            config.load_kube_config(client_configuration=settings)
        except config.ConfigException as failure:
            rule = (
                f"no cluster is configured: this is no pod, and {where} names none: {_short(str(failure)).rstrip('.')}"
            )
            problem = Problem("cluster", "unknown", rule, "run it in a pod, or set KUBECONFIG")
            raise InvalidInput([problem]) from None
        except (
            Exception
        ) as failure:  # of YAML, of base64, of a field of another type: that client lets all of them through
            rule = f"{where} cannot be read as a kubeconfig: {_short(str(failure))}"
            raise InvalidInput([Problem("cluster", "unknown", rule, "correct it, or set KUBECONFIG")]) from None
    return settings
