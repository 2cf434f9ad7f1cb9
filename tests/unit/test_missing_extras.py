"""A part whose package is not installed says which extra brings it."""

from __future__ import annotations

import importlib
import sys
import tomllib

import pytest
from hisparse_svc import extras

from tests.conftest import ROOT


class Without:
    """A machine that lacks some packages."""

    def __init__(self, *packages: str) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        del path, target
        if name.partition(".")[0] in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize(
    ("module", "name", "packages", "extra"),
    [
        ("hisparse_svc.integrations.ray", "CapacityRouter", ["ray"], "ray"),
        ("hisparse_svc.integrations.transformers", "HostKv", ["transformers", "torch"], "transformers"),
        ("hisparse_svc.engine", "HotCache", ["torch"], "engine"),
        ("hisparse_svc.kernels", "sparse_mla_decode", ["torch"], "engine"),
        ("hisparse_svc.topk", "Recorder", ["numpy"], "simulate"),
    ],
)
def test_an_import_without_its_extra_says_which_to_install(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str, packages: list[str], extra: str
) -> None:
    loaded = [known for known in sys.modules if known.partition(".")[0] in packages]
    parts = tuple(f"hisparse_svc.{part}" for part in ("engine", "integrations", "kernels", "topk"))
    for known in [*loaded, *(known for known in sys.modules if known.startswith(parts))]:
        monkeypatch.delitem(sys.modules, known)
    monkeypatch.setattr(sys, "meta_path", [Without(*packages), *sys.meta_path])
    with pytest.raises(ModuleNotFoundError) as missing:
        getattr(importlib.import_module(module), name)
    assert (missing.value.name or "").partition(".")[0] in packages
    assert str(missing.value).endswith(f"which is not installed; pip install 'hisparse-svc[{extra}]'")


def test_a_missing_module_that_no_extra_brings_stays_what_it_is() -> None:
    with (
        pytest.raises(ModuleNotFoundError, match=r"^No module named 'hisparse_svc\.nowhere'$"),
        extras.needed("x", "ray"),
    ):
        importlib.import_module("hisparse_svc.nowhere")


def test_every_extra_that_is_named_exists() -> None:

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(extras.EXTRAS) <= set(project["optional-dependencies"])
