"""What a request asks for, read from its arguments before it is sent.

::

    handle.remote({"prompt_tokens": 4096, "max_new_tokens": 256})          a mapping
    handle.remote(prompt_tokens=4096, max_new_tokens=256)                  keywords
    handle.remote(values.Request(prompt_tokens=4096, max_new_tokens=256))  as `Admit` takes it

`prefix_hashes` beside them, a list of `bytes` as `Admit` takes it, says which prefix the prompt shares with others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hisparse_svc.rpc.values import Request

if TYPE_CHECKING:
    from collections.abc import Iterable

FIELDS = ("prompt_tokens", "max_new_tokens", "generated_tokens", "pages")
"""What decides where a request fits."""

PREFIX = "prefix_hashes"
"""What decides where its prefix may be."""


def request_of(arguments: Iterable[Any], keywords: Mapping[str, Any]) -> Request:
    """Read what a call asks for; an empty request, which fits everywhere, where none of its arguments says."""
    for given in (*arguments, *keywords.values(), keywords):
        if isinstance(given, Request):
            return given
        if isinstance(given, Mapping):
            found = {field: given[field] for field in FIELDS if isinstance(given.get(field), int)}
            if found:
                return Request(**found, prefix_hashes=_hashes(given.get(PREFIX)))
    return Request()


def _hashes(given: Any) -> tuple[bytes, ...]:
    """Give the hashes; none where they are none: what is wrong with them the node says."""
    hashes = tuple(given) if isinstance(given, list | tuple) else ()
    return hashes if all(isinstance(each, bytes) for each in hashes) else ()
