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

EXTRAS = {"torch", "cuda", "transformers", "ray"}
"""What `make setup-engine` and the extra `ray` bring; parts of the package are for those who have it."""


@pytest.mark.parametrize("name", ["hisparse_svc", *(name for name in MODULES if name not in NEED_A_SERVICE)])
def test_examples_of_a_module_hold(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as absent:
        if absent.name is None or absent.name.split(".")[0] not in EXTRAS:
            raise
        pytest.skip(f"{absent.name} is not installed: make setup-engine, or pip install ray[serve]")
    assert doctest.testmod(module).failed == 0
