"""Host-backed KV for long-context sparse attention: budgets, admission, swap-in."""

from hisparse_svc._core import Model, __version__
from hisparse_svc.errors import HiSparseError, InvalidInput, Problem

__all__ = ["HiSparseError", "InvalidInput", "Model", "Problem", "__version__"]
