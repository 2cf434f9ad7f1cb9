"""Host-backed KV for long-context sparse attention: budgets, admission, swap-in."""

from hisparse_svc._core import __version__

__all__ = ["__version__"]
