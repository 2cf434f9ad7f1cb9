"""Every example in a docstring runs and says what it shows."""

import doctest
import importlib
import pkgutil

import hisparse_svc
import pytest

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(hisparse_svc.__path__, "hisparse_svc.")
    if not module.name.endswith("__main__") and "_core" not in module.name
)


@pytest.mark.parametrize("name", ["hisparse_svc", *MODULES])
def test_examples_of_a_module_hold(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
