"""Conditions of a node, made up, and an API server that only notes what it is told."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from hisparse_svc.kube.api import Rejected
from hisparse_svc.kube.objects import SERVING, Condition, Identity
from hisparse_svc.rpc.values import Capacity, Fit, Pool, ServerInfo

if TYPE_CHECKING:
    from hisparse_svc.kube.api import Away

STARTED = datetime(2026, 11, 30, 5, 0, tzinfo=UTC)
IDENTITY = Identity("serving", "decode-0", "10.0.0.7:7411", "0c0ffee0-0000-4000-8000-000000000001")
INFO = ServerInfo("0.1.0", 7, "glm-5.2", "memory", 64, 1 << 30, (), STARTED, 1.0, False, 0, {})


def pool(name: str, total: int, free: int, numa_node: int | None = None) -> Pool:
    return Pool(name, total, free, 0, total - free, 0, 0, 0, numa_node)


def capacity(*, pages: int = 1_000, seats: int = 40, fits: int = 20, grant: int = 60_000, epoch: int = 7) -> Capacity:
    """Of 1,000 pages and 40 seats what is free, how many fit, and the largest grant."""
    pools = (pool("host_pages", 1_000, pages), pool("seats", 40, seats))
    return Capacity(epoch, 5, STARTED, pools, grant, 64_000, False, pages, (Fit(8_192, fits, "host_pages"),))


def condition(state: str = SERVING, reason: str = "", **fields: Any) -> Condition:
    return Condition(state, reason, capacity(**fields), INFO)


def another_run(seen: Condition) -> Condition:
    assert seen.info is not None
    return replace(seen, info=replace(seen.info, version="0.2.0"), capacity=capacity(epoch=8))


@dataclass
class Node:
    """A node that is what the test says."""

    seen: Condition = field(default_factory=condition)

    def condition(self) -> Condition:
        return self.seen


@dataclass
class Server:
    """Notes every write; answers with what the test puts in."""

    writes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    answers: dict[str, Away | Rejected] = field(default_factory=dict)
    """What a write whose path ends so is refused with."""
    addresses: list[str] = field(default_factory=list)
    """What the object's next statuses are found to have as address, where that is not what was written."""

    def apply(self, path: str, body: dict[str, Any], *, manager: str, timeout_s: float) -> dict[str, Any]:
        assert manager == "hisparse-publish"
        assert timeout_s <= 5
        self.writes.append((path, body))
        for end, failure in self.answers.items():
            if path.endswith(end):
                raise failure
        return (
            {**body, "spec": {"address": self.addresses.pop()}} if path.endswith("/status") and self.addresses else body
        )

    there: dict[str, Any] | None = None
    """What a look finds; `None` where it is refused, as where nothing is there."""

    def look(self, path: str, body: dict[str, Any], *, manager: str, timeout_s: float) -> dict[str, Any]:
        assert (manager, timeout_s <= 5) == ("hisparse-look", True)
        assert (path.rpartition("/")[2], set(body)) == ("decode-0", {"apiVersion", "kind", "metadata"})
        if self.there is None:
            raise Rejected(422, "Invalid", "spec: Required value")
        return self.there

    def take(self) -> list[str]:
        """What was written since the last look, by the ends of the paths."""
        taken = [path.rpartition("/namespaces/serving/")[2] for path, _ in self.writes]
        self.writes.clear()
        return taken
