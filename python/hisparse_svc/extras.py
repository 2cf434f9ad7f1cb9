"""What only parts of the package need, and which extra brings it.

::

    import ray ─► not there ─► CapacityRouter needs ray, which is not installed; pip install 'hisparse-svc[ray]'
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

EXTRAS = {
    "engine": ("torch", "cuda"),
    "ray": ("ray",),
    "simulate": ("numpy",),
    "transformers": ("transformers", "torch"),
}
"""The packages of each extra that an import of ours may miss, by the names that they are imported by."""


@contextmanager
def needed(part: str, extra: str) -> Iterator[None]:
    """Import what a part of this package needs, or say which extra brings it.

    Args:
        part: What needs it, for people.
        extra: The one that brings it.

    Raises:
        ModuleNotFoundError: A package of the extra is missing, or lacks a module. Any other error stays what it is.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        name = missing.name or ""
        if name.partition(".")[0] not in EXTRAS[extra]:
            raise
        text = f"{part} needs {name}, which is not installed; pip install 'hisparse-svc[{extra}]'"
        raise ModuleNotFoundError(text, name=name) from None
