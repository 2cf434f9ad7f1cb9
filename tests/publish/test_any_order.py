"""A publisher against a server that fails and forgets in any order: what is stored in the end is what the node has."""

from __future__ import annotations

from typing import Any

from hisparse_svc.kube.api import Away, Rejected
from hisparse_svc.kube.objects import DRAINING, RECOVERING, SERVING, STOPPED, UNREACHABLE
from hisparse_svc.kube.publisher import Publisher
from hisparse_svc.kube.telling import Teller
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.publish.sample import IDENTITY, Node, another_run, condition

LONGEST_S = 150.0
"""By when all is well again: the longest rest, 60 s and what the server asks for, and the longest refresh, 24 s."""


class Store:
    """Keeps objects as server-side apply does, unless it fails; counts what it is asked."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.failure: Away | Rejected | None = None
        self.asked: list[float] = []
        self.now = 0.0

    def apply(self, path: str, body: dict[str, Any], *, manager: str, timeout_s: float) -> dict[str, Any]:
        del manager, timeout_s
        self.asked.append(self.now)
        if self.failure is not None:
            raise self.failure
        name = path.removesuffix("/status")
        if path.endswith("/status"):
            if name not in self.objects:
                raise Rejected(404, "NotFound", "there is none")
            self.objects[name] = {**self.objects[name], "status": body["status"]}
        else:
            self.objects[name] = {**self.objects.get(name, {}), **body}
        return body

    def look(self, path: str, body: dict[str, Any], *, manager: str, timeout_s: float) -> dict[str, Any]:
        del body, manager, timeout_s
        if self.failure is not None:
            raise self.failure
        if path not in self.objects:
            raise Rejected(422, "Invalid", "spec: Required value")
        return self.objects[path]

    def found(self, kind: str) -> dict[str, Any]:
        """The one object of a kind; empty where there is none."""
        return next((each for path, each in self.objects.items() if f"/{kind}/" in path), {})


FAILURES = (
    None,
    Away("nothing answers; look"),
    Rejected(403, "Forbidden", "no"),
    Rejected(404, "NotFound", "no such kind"),
    Rejected(429, "TooManyRequests", "later", 20.0),
    Rejected(500, "InternalError", "etcd"),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("rest"), st.floats(0, 90)),
        st.tuples(st.just("state"), st.sampled_from([SERVING, DRAINING, RECOVERING, UNREACHABLE])),
        st.tuples(st.just("pages"), st.integers(0, 1_000)),
        st.tuples(st.just("run"), st.none()),
        st.tuples(st.just("server"), st.sampled_from(range(len(FAILURES)))),
        st.tuples(st.just("delete"), st.sampled_from(["hisparsenodes", "leases"])),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(steps=steps, chance=st.randoms(use_true_random=False))
def test_whatever_happens_in_any_order_the_directory_is_right_in_the_end(steps: Any, chance: Any) -> None:
    store, node = Store(), Node()
    publisher = Publisher(store, IDENTITY, node, Teller(lambda _: None, as_json=False), chance=chance.random)

    def advance(seconds: float) -> None:
        end = store.now + seconds
        while True:
            at = publisher.step(store.now)
            if at > end:
                break
            store.now = max(at, store.now)
        store.now = end

    for word, value in steps:
        if word == "rest":
            advance(value)
        elif word == "state":
            node.seen = condition(value, pages=node.seen.capacity.pool("host_pages").free)  # type: ignore[union-attr]
        elif word == "pages":
            node.seen = condition(node.seen.state, pages=value)
        elif word == "run":
            node.seen = another_run(node.seen)
        elif word == "server":
            store.failure = FAILURES[value]
        else:
            store.objects = {path: each for path, each in store.objects.items() if f"/{value}/" not in path}
        advance(0.0)
    store.failure = None
    advance(LONGEST_S)

    shown, lease = store.found("hisparsenodes"), store.found("leases")
    assert shown["spec"]["version"] == node.seen.info.version  # type: ignore[union-attr]
    assert shown["status"]["state"] == node.seen.state
    told = next(pool["free"] for pool in shown["status"]["pools"] if pool["name"] == "host_pages")
    assert abs(told - node.seen.capacity.pool("host_pages").free) < 50  # type: ignore[union-attr]
    if node.seen.state != UNREACHABLE:
        assert lease["spec"]["holderIdentity"] == IDENTITY.pod_uid
    for place, start in enumerate(store.asked):
        in_a_minute = sum(start <= at < start + 60 for at in store.asked[place:])
        assert in_a_minute <= 60, "no failure and no change makes it ask without end"
    publisher.goodbye()
    assert store.found("hisparsenodes")["status"]["state"] == STOPPED
    assert "holderIdentity" not in store.found("leases").get("spec", {})
