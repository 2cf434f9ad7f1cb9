"""Host-backed KV for long-context sparse attention: budgets, admission, swap-in.

>>> import hisparse_svc
>>> plan = hisparse_svc.plan("glm-5.2", ratio=4, context=[131072])
>>> plan.cell_bytes
62256
"""

from __future__ import annotations

from hisparse_svc._core import Model, Plan, Preset, Validation, __version__
from hisparse_svc.errors import HiSparseError, InvalidInput, Problem
from hisparse_svc.planner.models import load_model, models
from hisparse_svc.planner.plan import plan
from hisparse_svc.planner.validate import validate

__all__ = [
    "HiSparseError",
    "InvalidInput",
    "Model",
    "Plan",
    "Preset",
    "Problem",
    "Validation",
    "__version__",
    "load_model",
    "models",
    "plan",
    "validate",
]
