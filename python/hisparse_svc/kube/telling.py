"""What a publisher tells its operator: lines on stderr, and counts for a scraper.

::

    failure ─► one line: what, why, what to do ─ the same again ─► counted; a line each minute
    write   ─► counted; a line where failures went before
    node    ─► a line where it does not answer, each minute, and where it answers again
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kube.api import TRUST, Away, Rejected, Untrusted
from hisparse_svc.kube.objects import SERVING, UNREACHABLE
from hisparse_svc.kube.pace import JITTER, LONGEST_REFRESH_S
from hisparse_svc.rpc.target import HOST_PORT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

AGAIN_S = 60.0
"""The same failure is told again after so long."""
FIRST_S = 5.0
"""A node that has never answered is told of after so long: it may only be starting."""
HUNG_S = 60.0
"""A publisher that has not looked at its node for so long hangs: `/healthz` says so, and a new start helps."""

KINDS = {"node": "HisparseNode", "lease": "Lease"}

REMEDIES = {
    401: "its token is not taken: look whether the account exists and the clocks of the machines agree",
    403: "its account may not: bind the Role hisparse-node of deploy/kubernetes/components/directory to it",
    404: "apply deploy/kubernetes/cluster, which has the kind, and look whether the namespace exists",
    409: "somebody else writes it, or its namespace ends; it is tried again",
    422: "the installed kind does not take this version's object: apply deploy/kubernetes/cluster of this version",
    429: "the API server sheds load: it is asked again when it says; a longer --refresh writes less",
}
"""What to do about each code of HTTP."""


OF_A_POLICY = "ValidatingAdmissionPolicy 'hisparse-node-writes-itself'"
"""In the message of a write that the policy of deploy/kubernetes/cluster refuses; its code is 422 as well."""


def remedy(failure: Away | Rejected) -> str:
    """Say what to do about a failure."""
    if isinstance(failure, Untrusted):
        return TRUST
    if isinstance(failure, Rejected) and OF_A_POLICY in failure.text:
        return (
            "set POD_NAME, POD_UID and the token by the pod's own, as deploy/kubernetes/components/directory does, "
            "and no --name"
        )
    if isinstance(failure, Away):
        return "look whether it is up, and whether a NetworkPolicy lets this pod reach it"
    return REMEDIES.get(failure.status, "look at the API server; it is tried again")


def outcome(failure: Away | Rejected) -> str:
    """Give the word that a failure is counted under."""
    return "away" if isinstance(failure, Away) else str(failure.status)


class Teller:
    """Tells and counts; from any thread.

    Args:
        say: Prints one line.
        as_json: Whether lines are JSON documents.
    """

    def __init__(self, say: Callable[[str], None], *, as_json: bool) -> None:
        self._say, self._as_json = say, as_json
        self._lock = threading.Lock()
        self._told: dict[tuple[str, str], float] = {}
        self._state, self._state_at, self._was_silent = "", 0.0, False
        self._state_told_at: float | None = None
        self._contested_at: float | None = None
        self.counts: Counter[tuple[str, str]] = Counter()
        """Writes by object and outcome: `done`, `away`, or the code of HTTP."""
        self.written_at: dict[str, float] = {}
        """When each object was last written, seconds since 1970."""
        self.looked_at = time.monotonic()
        """When the publisher last looked at its node."""

    def wrote(self, what: str, failures: int) -> None:
        """One was written, after so many failures."""
        with self._lock:
            self.counts[what, "done"] += 1
            first = what not in self.written_at
            self.written_at[what] = time.time()
            self._told = {key: at for key, at in self._told.items() if key[0] != what}
        if first or failures:
            again = f" again, after {failures} failures" if failures else ""
            self.line("info", f"the {KINDS[what]} is written{again}", event="written", object=what)

    def failed(self, what: str, failure: Away | Rejected, rest_s: float, failures: int) -> None:
        """One could not be written."""
        word, now = outcome(failure), time.monotonic()
        with self._lock:
            self.counts[what, word] += 1
            last = self._told.get((what, word))
            if last is not None and now - last < AGAIN_S:
                return
            self._told[what, word] = now
        text = str(failure) if isinstance(failure, Rejected) else str(failure).partition("; ")[0]
        message = f"the {KINDS[what]} cannot be written: {text}; {remedy(failure)}"
        self.line(
            "warning", message, event="failed", object=what, code=word, failures=failures, rest_s=round(rest_s, 1)
        )

    def saw(self, state: str, reason: str, now: float, *, known: bool) -> None:
        """The node is in a state; one that does not answer is told of, each minute, and when it is back.

        Args:
            state: Its state.
            reason: Why.
            now: Seconds of the caller's clock.
            known: Whether it has ever answered.
        """
        if state != self._state:
            self._state, self._state_at, self._state_told_at = state, now, None
        if state == UNREACHABLE:
            due = self._state_at + (0.0 if known else FIRST_S)
            if now >= (due if self._state_told_at is None else self._state_told_at + AGAIN_S):
                self._state_told_at, self._was_silent = now, True
                self.line("warning", f"the node does not answer: {reason}", event="node", state=state)
        elif self._was_silent:
            self._was_silent = False
            why = "" if state == SERVING else f": {reason}"
            self.line("info", f"the node answers again, and is {state}{why}", event="node", state=state)

    def contested(self, address: str, now: float) -> None:
        """The object names another address than this publisher's: somebody else writes it too, or a hand did."""
        if self._contested_at is None or now >= self._contested_at + AGAIN_S:
            self._contested_at = now
            text = f"another publisher, or a hand, wrote {address} into this HisparseNode"
            remedy = "give each node a name of its own"
            self.line("warning", f"{text}; {remedy}", event="contested", address=address)

    def shared(self, address: str, age_s: float) -> None:
        """Another publisher wrote this object not long ago, and did not say that it stopped."""
        if age_s > LONGEST_REFRESH_S * (1 + JITTER):  # it would have written again
            return
        text = f"{address} was published as this HisparseNode {max(age_s, 0.0):.0f} s ago"
        remedy = "if its publisher still runs, give each node a name of its own: two that share one take turns"
        self.line("warning", f"{text}; {remedy}", event="shared", address=address)

    def left_to(self, address: str) -> None:
        """The publisher stops, and another one has the object."""
        self.line("info", f"this HisparseNode and its Lease are left to {address}", event="left", address=address)

    def line(self, level: str, message: str, **fields: Any) -> None:
        """Print one line."""
        if self._as_json:
            at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            self._say(json.dumps({"time": at, "level": level, **fields, "message": message}))
        else:
            self._say(message if level == "info" else f"{level}: {message}")

    def health(self) -> str:
        """Say whether the publisher works; empty where it hangs."""
        return "ok\n" if time.monotonic() - self.looked_at < HUNG_S else ""

    def metrics(self) -> str:
        """Give the counts as Prometheus reads them."""
        with self._lock:
            counts, written = dict(self.counts), dict(self.written_at)
        lines = [
            "# HELP hisparse_publish_writes_total Writes to the cluster's directory, by how they ended.",
            "# TYPE hisparse_publish_writes_total counter",
            *(
                f'hisparse_publish_writes_total{{object="{what}",result="{word}"}} {count}'
                for (what, word), count in sorted(counts.items())
            ),
            "# HELP hisparse_publish_written_seconds When each object was last written, seconds since 1970.",
            "# TYPE hisparse_publish_written_seconds gauge",
            *(f'hisparse_publish_written_seconds{{object="{what}"}} {at:.3f}' for what, at in sorted(written.items())),
        ]
        return "\n".join(lines) + "\n"


@contextlib.contextmanager
def serve_metrics(address: str | None, teller: Teller) -> Iterator[str]:
    """Serve `/metrics` and `/healthz` while the block runs; gives where, empty where no address is named.

    Raises:
        InvalidInput: The address cannot be read, or cannot be had.
    """
    if address is None or address == "off":
        yield ""
        return
    found = HOST_PORT.fullmatch(address)
    if found is None:
        problem = Problem("--http", f'"{address[:80]}"', "must be HOST:PORT, or off", "write 0.0.0.0:7413")
        raise InvalidInput([problem])

    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            pages: dict[str, Callable[[], str]] = {"/metrics": teller.metrics, "/healthz": teller.health}
            page = pages.get(self.path.partition("?")[0])
            text = "" if page is None else page()
            self.send_response(404 if page is None else 200 if text else 503)
            body = (text or "nothing here\n").encode()
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    try:
        server = ThreadingHTTPServer((found[1].strip("[]"), int(found[2])), Handler)
    except (OSError, OverflowError) as failure:
        why = getattr(failure, "strerror", None) or failure
        problem = Problem("--http", f'"{address}"', f"cannot be listened on: {why}", "name a free one of this machine")
        raise InvalidInput([problem]) from None
    threading.Thread(target=server.serve_forever, name="hisparse-publish-http", daemon=True).start()
    try:
        yield f"{server.server_address[0]!s}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
