"""Layers inside a crate: a file uses what lies below it, and nothing that uses it. A new circle fails the build here.

The names that files use are read from their text; `rust_files.py` says which. A type whose methods lie in several files
is seen once, in the file that defines it: those files use it, and it uses none of them.
"""

from pathlib import Path

import pytest

from tests.house.rust_files import circles, edges

ROOT = Path(__file__).parents[2]

CRATES = sorted(path.parent.name for path in (ROOT / "rust").glob("*/Cargo.toml"))


def told(arrows: dict[tuple[str, str], set[str]], circle: frozenset[str]) -> str:
    return "\n".join(
        f"  {user} -> {used}: {', '.join(sorted(names))}"
        for (user, used), names in sorted(arrows.items())
        if user in circle and used in circle
    )


@pytest.mark.parametrize("name", CRATES)
def test_no_file_uses_one_that_uses_it(name: str) -> None:
    crate = ROOT / "rust" / name
    arrows = edges(crate)
    found = [told(arrows, circle) for circle in circles(set(arrows))]
    assert not found, "files of {} use each other; move what they share below both:\n{}".format(
        name, "\n\n".join(found)
    )


def crate_of(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


CIRCLES = {
    "by `use`": (
        "use crate::shape::Side;\npub struct Plan(Side);",
        "use super::plan::Plan;\npub struct Side; fn f(_: Plan) {}",
    ),
    "by a path in code": (
        "pub struct Plan(crate::shape::Side);",
        "pub struct Side;\nfn f() { crate::plan::Plan::new() }",
    ),
    "by a module's name": (
        "use crate::shape;\npub fn plan() { shape::side() }",
        "use crate::{plan};\npub fn side() { plan::plan() }",
    ),
    "by a glob": (
        "use crate::shape::*;\npub struct Plan(Side);",
        "use crate::plan::Plan;\npub struct Side; fn f(_: Plan) {}",
    ),
    "under another name": (
        "use crate::shape::{Side as S};\npub struct Plan(S);",
        "pub struct Side(crate::shown::Shown);",
    ),
}


@pytest.mark.parametrize("how", CIRCLES)
def test_a_circle_is_seen(how: str, tmp_path: Path) -> None:
    plan, shape = CIRCLES[how]
    lib = "mod plan;\nmod shape;\nmod shown { pub use crate::plan::Plan as Shown; }"
    crate = crate_of(tmp_path, {"lib.rs": lib, "plan.rs": plan, "shape.rs": shape})
    assert circles(set(edges(crate))) == [{"plan.rs", "shape.rs"}]


def test_a_child_that_uses_what_its_parent_defines_is_a_circle_where_the_parent_uses_the_child(tmp_path: Path) -> None:
    files = {
        "lib.rs": "mod a;",
        "a/mod.rs": "mod b;\nuse b::go;\npub struct A;\nfn f() { go() }",
        "a/b.rs": "pub fn go(_: super::A) {}",
    }
    assert circles(set(edges(crate_of(tmp_path, files)))) == [{"a/mod.rs", "a/b.rs"}]


def test_a_name_taken_through_a_file_that_uses_the_taker_is_a_circle_until_that_file_only_gathers(
    tmp_path: Path,
) -> None:
    node = {"lib.rs": "mod memory;\nmod node;", "node.rs": "pub struct Node(crate::memory::Hosting);"}
    host = "use crate::node::Node;\npub struct Host(Node);"
    hosting = {"memory/hosting.rs": "pub struct Hosting;"}
    shown = "mod hosting;\npub use hosting::Hosting;\n"
    tied = crate_of(tmp_path / "tied", node | hosting | {"memory.rs": shown + host})
    assert circles(set(edges(tied))) == [{"memory.rs", "node.rs"}]
    apart = crate_of(tmp_path / "apart", node | hosting | {"memory.rs": shown + "mod host;", "memory/host.rs": host})
    assert circles(set(edges(apart))) == []


def test_what_only_looks_like_a_circle_is_none(tmp_path: Path) -> None:
    gathers = """
        mod b;
        mod c;
        pub use b::B;
        pub use c::*;
        pub struct A;
        #[cfg(test)]
        mod tests { use super::b::B; fn f(_: B) {} }
    """
    speaks_of_c = """
        //! [`C`](crate::a::C)
        use super::A;
        pub struct B(A); // crate::a::c::C
        const TEXT: &str = "crate::a::c::C";
    """
    of_tests = """
        use crate::a::B;
        pub struct C<'c>(&'c B);
        #[cfg(test)]
        use crate::error::Error;
    """
    error = "pub struct Error<'e>(crate::a::C<'e>);"
    files = {
        "lib.rs": "pub mod a;\npub mod error;",
        "a/mod.rs": gathers,
        "a/b.rs": speaks_of_c,
        "a/c.rs": of_tests,
        "error.rs": error,
    }
    arrows = set(edges(crate_of(tmp_path, files)))
    assert circles(arrows) == []
    through_a = {("a/c.rs", "a/mod.rs"), ("error.rs", "a/mod.rs")}
    assert arrows == {("a/b.rs", "a/mod.rs"), ("a/c.rs", "a/b.rs"), ("error.rs", "a/c.rs")} | through_a
