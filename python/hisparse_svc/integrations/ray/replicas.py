"""The replicas of a deployment as a directory of the fleet: each names its node in its metadata.

::

    NodeReplica.record_replica_metadata ─► Ray's controller ─► the router's update_replicas ─► Replicas ─► Fleet
"""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING

from hisparse_svc.fleet import Member

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Iterator
    from typing import Any

TARGET = "hisparse_target"
"""Key of a replica's metadata: where its node is, as a `Client` takes it."""

LOOK_S = 0.5
"""Between two looks at whether the fleet is closed."""


def name_of(replica: Any) -> str:
    """Give a replica's name in the fleet."""
    return str(replica.replica_id.unique_id)


class Replicas:
    """The replicas that have a node, as Ray told them last."""

    def __init__(self) -> None:
        self._told: queue.SimpleQueue[tuple[Member, ...]] = queue.SimpleQueue()

    def update(self, replicas: Iterable[Any]) -> None:
        """Take in who is there now."""
        self._told.put(
            tuple(
                Member(name_of(replica), str(target))
                for replica in replicas
                if (target := replica.replica_metadata.get(TARGET))
            )
        )

    def follow(self, closing: threading.Event) -> Iterator[tuple[Member, ...]]:
        """Give all members whenever one came or left."""
        while not closing.is_set():
            try:
                yield self._told.get(timeout=LOOK_S)
            except queue.Empty:
                continue

    def __str__(self) -> str:
        """Say where, for errors."""
        return "the replicas of Ray Serve"
