"""Every example in a docstring runs and says what it shows."""

import doctest
import importlib
import pkgutil

import hisparse_svc
import pytest

NEED_A_SERVICE = {"hisparse_svc.client", "hisparse_svc.aio"}
"""Their examples talk to a running service, and are tried where there is one."""

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(hisparse_svc.__path__, "hisparse_svc.")
    if not module.name.endswith("__main__") and not {"_core", "_proto"} & set(module.name.split("."))
)

NEED_TORCH = {"engine", "kernels", "testing", "_conformance"}
"""Parts that a machine without torch does not have."""


@pytest.mark.parametrize("name", ["hisparse_svc", *(name for name in MODULES if name not in NEED_A_SERVICE)])
def test_examples_of_a_module_hold(name: str) -> None:
    if NEED_TORCH & set(name.split(".")):
        pytest.importorskip("torch", reason="torch is not installed: make setup-engine")
    assert doctest.testmod(importlib.import_module(name)).failed == 0
