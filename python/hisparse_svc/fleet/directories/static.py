"""A fleet that was named at the start and stays as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hisparse_svc.fleet.directories.member import Member, read_members

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Iterator


class StaticList:
    """Nodes named one by one.

    Args:
        nodes: `unix:PATH`, `HOST:PORT` or `NAME=HOST:PORT` each, or members.

    Raises:
        InvalidInput: Every one that cannot be read.
    """

    def __init__(self, nodes: Iterable[str | Member]) -> None:
        given = list(nodes)
        texts = [node if isinstance(node, str) else f"{node.name}={node.target}" for node in given]
        read = read_members([text for text, node in zip(texts, given, strict=True) if isinstance(node, str)])
        self.members = (*read, *(node for node in given if isinstance(node, Member)))

    def follow(self, closing: threading.Event) -> Iterator[tuple[Member, ...]]:
        """Give them once."""
        del closing
        yield self.members

    def __str__(self) -> str:
        """Say where the members come from."""
        return "the list of nodes"
