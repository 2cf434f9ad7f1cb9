"""One kind of object of a namespace, listed and then watched, until something breaks.

::

    list, in pages ─► Listed ─► watch from there ─► Stands ─► Changed, Changed, Marked, … ─► ends: watch on
                        ▲                                         ├─ 410, too old ─┐
                        └─────────────────────────────────────────│────────────────┘
                                                                  └─ breaks: raised

Every event says the version that it leads to. Who has taken one in can go on from there, with another reflector.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hisparse_svc.kube.api import Away, Rejected

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator
    from datetime import datetime

    from hisparse_svc.kube.api import Api, Document, Events

WATCH_S = 60
"""Longest watch before it begins anew, from where it was."""
REST_S = 0.5
"""Between two watches, so that one that ends at once is no busy loop."""
PAGE = 500
"""Objects of one page of a list."""
GONE = 410
"""Code of HTTP for a version that is too old."""


@dataclass(frozen=True, slots=True)
class Listed:
    """All that there is."""

    version: str
    items: list[Document]
    server_time: datetime | None
    """When, by the API server's clock."""


@dataclass(frozen=True, slots=True)
class Stands:
    """The watch is open: what is known holds."""

    version: str


@dataclass(frozen=True, slots=True)
class Changed:
    """One object came, changed or went."""

    version: str
    document: Document
    gone: bool


@dataclass(frozen=True, slots=True)
class Marked:
    """Nothing else happened up to this version."""

    version: str


Event = Listed | Stands | Changed | Marked


@dataclass(eq=False)
class Reflector:
    """What is followed.

    Args:
        api: The API server.
        path: The collection.
        selector: Labels that are looked at alone; empty for all.
        version: Where to go on; empty to list first.
    """

    api: Api
    path: str
    selector: str = ""
    version: str = ""
    _events: Events | None = field(default=None, repr=False)

    def follow(self, closing: threading.Event) -> Iterator[Event]:
        """Give what happens until `closing` is set.

        Raises:
            Away: The API server does not answer.
            Rejected: It says no.
        """
        while not closing.is_set():
            try:
                if not self.version:
                    yield self._list()
                yield from self._watch(closing)
            except Rejected as failure:
                if failure.status != GONE:
                    raise
                self.version = ""
            except Away:
                if closing.is_set():  # `wake` cut the connection while something was still in it
                    return
                raise
            closing.wait(REST_S)

    def _list(self) -> Listed:
        items: list[Document] = []
        query: dict[str, Any] = {"limit": PAGE, **self._selected()}
        while True:
            page, server_time = self.api.get(self.path, query)
            items += page.get("items") or []
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                self.version = metadata.get("resourceVersion", "")
                return Listed(self.version, items, server_time)
            query["continue"] = metadata["continue"]

    def _watch(self, closing: threading.Event) -> Iterator[Event]:
        query = {"resourceVersion": self.version, **self._selected()}
        with self.api.watch(self.path, query, longest_s=WATCH_S) as self._events:
            if closing.is_set():  # before it stood, so that `wake` found nothing
                return
            yield Stands(self.version)
            for event in self._events:
                if closing.is_set():
                    return
                document = event.get("object") or {}
                self.version = (document.get("metadata") or {}).get("resourceVersion") or self.version
                if event.get("type") == "BOOKMARK":
                    yield Marked(self.version)
                else:
                    yield Changed(self.version, document, gone=event.get("type") == "DELETED")

    def _selected(self) -> dict[str, str]:
        return {"labelSelector": self.selector} if self.selector else {}

    def wake(self) -> None:
        """Wake a `follow` that waits for an event, so that it sees that it is to end."""
        if self._events is not None:
            self._events.wake()
