"""Layers: data goes down the picture, and so may imports. A reversed edge fails the build here."""

import tomllib
from pathlib import Path

import pytest

from tests.house.imports import imported

ROOT = Path(__file__).parents[2]

CRATES = ["hisparse-core", "hisparse-mem", "hisparse-serve", "hisparse-py"]
"""From the bottom to the top."""

OUTSIDE = {"hisparse-sim"}
"""Judges the rest: may depend on every crate, and no crate on it."""

SHOWN = {("hisparse-py", "hisparse-sim")}
"""`simulate-fleet` plays the fleet that the judge plays."""

PYTHON_LAYERS = [
    {"errors"},
    {"_core", "_proto", "extras", "files", "scratch"},
    {"planner", "doctor", "rpc", "topk"},
    {"client", "aio", "config", "conformance", "kernels"},
    {"kube"},
    {"fleet"},
    {"node", "replay", "simulate"},
    {"engine"},
    {"integrations"},
    {"_conformance"},
    {"testing"},
    {"bench"},
    {"cli"},
    {"__main__"},
]
"""From the bottom to the top; modules of one layer do not import each other. `__init__` only gathers."""


def manifests() -> dict[str, dict[str, object]]:
    return {
        path.parent.name: tomllib.loads(path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / "rust").glob("*/Cargo.toml"))
        if path.parent.name != "fuzz"
    }


def crate_edges() -> list[tuple[str, str]]:
    edges = []
    for name, manifest in manifests().items():
        for table in ("dependencies", "build-dependencies", "dev-dependencies"):
            dependencies = manifest.get(table, {})
            assert isinstance(dependencies, dict)
            edges += [(name, other) for other in dependencies if other.startswith("hisparse-")]
    return edges


def test_every_crate_has_its_place() -> None:
    assert set(manifests()) - OUTSIDE == set(CRATES) & set(manifests())


@pytest.mark.parametrize("edge", crate_edges(), ids=" -> ".join)
def test_a_crate_depends_only_on_lower_ones(edge: tuple[str, str]) -> None:
    user, used = edge
    if edge in SHOWN:
        return
    assert used not in OUTSIDE, f"{user} must not depend on {used}"
    if user not in OUTSIDE:
        assert CRATES.index(used) < CRATES.index(user), f"{user} depends on {used}, which lies above it"


def layer_of(module: str) -> int:
    for height, names in enumerate(PYTHON_LAYERS):
        if module in names:
            return height
    pytest.fail(f"hisparse_svc.{module} has no layer: give it one in {Path(__file__).name}")


def python_edges() -> list[tuple[str, str]]:
    edges = set()
    package = ROOT / "python" / "hisparse_svc"
    for path in sorted(package.rglob("*.py")):
        user = path.relative_to(package).parts[0].removesuffix(".py")
        if user == "__init__":
            continue
        for name, _ in imported(path):
            first, *rest = name.split(".")
            if first == "hisparse_svc" and rest and rest[0] != user:
                edges.add((user, rest[0]))
    return sorted(edges)


@pytest.mark.parametrize("edge", python_edges(), ids=" -> ".join)
def test_a_module_imports_only_lower_ones(edge: tuple[str, str]) -> None:
    user, used = edge
    assert layer_of(used) < layer_of(user), f"{user} imports {used}, which does not lie below it"


def test_only_who_finds_and_who_publishes_nodes_knows_of_kubernetes() -> None:
    assert {user for user, used in python_edges() if used == "kube"} == {"cli", "fleet"}
    commands = ROOT / "python/hisparse_svc/cli"
    assert [path.name for path in commands.glob("*.py") if "hisparse_svc.kube" in path.read_text()] == ["publish.py"]
    for crate in CRATES:
        for path in (ROOT / "rust" / crate / "src").rglob("*.rs"):
            assert "ubernetes" not in path.read_text(encoding="utf-8"), path


def test_the_core_forbids_unsafe_code() -> None:
    text = (ROOT / "rust/hisparse-core/src/lib.rs").read_text(encoding="utf-8")
    assert "#![forbid(unsafe_code)]" in text
