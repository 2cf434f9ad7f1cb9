"""Which file of a crate uses a name that another one defines, read from the text.

A name is followed through re-exports to the file that defines it. A `mod.rs` that only gathers its children uses none
of them, and is not used where a name is taken through it; one that also defines things is used. Comments, strings, and
what is built for tests alone are not read. Methods are not followed: the file that defines a type is known, and those
that hold its `impl` blocks use it; which of them a call needs is not known.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

NOT_CODE = re.compile(
    r"""
    //[^\n]* | /\*.*?\*/
    | b?r(?P<hashes>\#*)".*?"(?P=hashes) | b?"(?:\\.|[^"\\])*"
    | b?'(?:\\u\{\w+\}|\\x\w\w|\\.|[^'\\\n])'
    """,
    re.VERBOSE | re.DOTALL,
)
FOR_TESTS = re.compile(r"#\[cfg\((?:test|all\(test\b[^\]]*)\)\]\s*(?:#\[[^\]]*\]\s*)*")
MODULE = re.compile(r"\bmod\s+(\w+)\s*([;{])")
ITEM = re.compile(r"\b(?:struct|enum|union|trait|type|fn|const|static|macro_rules!)\s+(?:mut\s+)?(\w+)")
USE = re.compile(r"(\bpub(?:\([^)]*\))?\s+)?\buse\s+([^;]+);")
PATH = re.compile(r"(?<![\w.:])\w+(?:::\w+)+")
WORD = re.compile(r"(?<![\w.])\w+(?!\w)")


@dataclass
class Use:
    """One name that a `use` line brings into a module; `name` is `*` for all of them."""

    name: str
    path: list[str]
    shown: bool


@dataclass
class Module:
    file: Path
    parent: "Module | None"
    code: str = ""
    items: set[str] = field(default_factory=set)
    uses: list[Use] = field(default_factory=list)
    children: "dict[str, Module]" = field(default_factory=dict)

    @property
    def root(self) -> "Module":
        return self.parent.root if self.parent else self


def block_end(text: str, start: int) -> int:
    """Where the item that begins at `start` ends: behind its first `;`, behind its block, or with what it stands in."""
    depth = 0
    for at in range(start, len(text)):
        if text[at] in "{([":
            depth += 1
        elif text[at] in "})]":
            depth -= 1
            if depth < 0:
                return at
            if depth == 0 and text[at] == "}":
                return at + 1
        elif text[at] == ";" and depth == 0:
            return at + 1
    return len(text)


def without_tests(text: str) -> str:
    """The code that a build without tests has."""
    text = NOT_CODE.sub(" ", text)
    while found := FOR_TESTS.search(text):
        text = text[: found.start()] + text[block_end(text, found.end()) :]
    return text


def outermost(text: str) -> str:
    """The text without what stands in braces."""
    kept, depth = [], 0
    for char in text:
        depth -= char == "}"
        if depth == 0:
            kept.append(char)
        depth += char == "{"
    return "".join(kept)


def use_tree(text: str, before: list[str]) -> Iterator[tuple[str, list[str]]]:
    """`a::{b, c as d}` as (`b`, a::b) and (`d`, a::c)."""
    head, brace, rest = text.partition("{")
    steps = before + [step.strip() for step in head.split("::") if step.strip()]
    if brace:
        depth, part = 0, ""
        for char in rest.strip()[:-1] + ",":
            depth += (char == "{") - (char == "}")
            if char == "," and depth == 0:
                if part.strip():
                    yield from use_tree(part.strip(), steps)
                part = ""
            else:
                part += char
        return
    last, _, alias = steps[-1].partition(" as ")
    path = [*steps[:-1], last.strip()]
    if path[-1] == "self":
        path.pop()
    yield alias.strip() or path[-1], path


def read(file: Path, folder: Path, parent: Module | None, text: str | None = None) -> Module:
    """The module of `file` and all below it; `folder` holds the files of its children."""
    module = Module(file, parent)
    text = without_tests(file.read_text(encoding="utf-8")) if text is None else text
    while found := MODULE.search(text):
        name, end = found[1], found.end()
        if found[2] == ";":
            flat, nested = folder / f"{name}.rs", folder / name / "mod.rs"
            child = read(flat if flat.exists() else nested, folder / name, module)
        else:
            end = block_end(text, found.start())
            child = read(file, folder / name, module, text[found.end() : end - 1])
        module.children[name] = child
        text = text[: found.start()] + text[end:]
    for found in USE.finditer(text):
        shown = bool(found[1])
        module.uses += [Use(name, path, shown) for name, path in use_tree(" ".join(found[2].split()), [])]
    module.code = USE.sub(" ", text)
    module.items = set(ITEM.findall(outermost(module.code)))
    return module


def defining(module: Module, path: list[str], seen: frozenset[tuple[int, str]] = frozenset()) -> set[Path]:
    """The files that define what `path` means in `module`; none where that is another crate's or a module."""
    first, *rest = path
    if first in {"crate", "self", "super"}:
        start = {"crate": module.root, "self": module, "super": module.parent}[first]
        return defining(start, rest, seen) if start and rest else set()
    if (id(module), first) in seen:
        return set()
    seen |= {(id(module), first)}
    files: set[Path] = set()
    if first in module.items and (not rest or first[0].isupper()):
        files.add(module.file)
    if rest and first in module.children:
        files |= defining(module.children[first], rest, seen)
    shown: set[Path] = set()
    for use in module.uses:
        if use.name == first:
            shown |= defining(module, use.path + rest, seen)
        elif use.name == "*" and not files:
            shown |= defining(module, use.path[:-1] + path, seen)
    if shown and module.items:
        shown.add(module.file)
    return files | shown


def taken(use: Use, code: str) -> bool:
    """Whether the code takes the item: not so where it only shows it to others, or takes a module of the same name."""
    if use.name[0].islower():
        called = re.search(rf"(?<![\w.:])(?<!fn ){use.name}!?\s*(?:\(|::<)", code)
        as_module = re.search(rf"(?<![\w.:]){use.name}::\w", code)
        return bool(called) or not (use.shown or as_module)
    # A trait is taken for its methods, and not named again.
    return not use.shown or bool(re.search(rf"\b{use.name}\b", code))


def used_by(module: Module) -> Iterator[tuple[str, Path]]:
    """What the code of one module names of its crate, with the file that defines it."""
    words = set(WORD.findall(module.code))
    for use in module.uses:
        if use.name == "*":
            names = [[*use.path[:-1], word] for word in words if word not in {"crate", "self", "super", "Self"}]
        elif taken(use, module.code):
            names = [use.path]
        else:
            names = []
        for path in names:
            for file in defining(module, path):
                yield "::".join(path), file
    for text in set(PATH.findall(module.code)):
        for file in defining(module, text.split("::")):
            yield text, file


def edges(crate: Path) -> dict[tuple[str, str], set[str]]:
    """From the file that uses to the file that defines, by paths under `src`, with the names between them."""
    source = crate / "src"
    found: dict[tuple[str, str], set[str]] = {}
    waiting = [read(source / "lib.rs", source, None)]
    while waiting:
        module = waiting.pop()
        waiting += module.children.values()
        user = module.file.relative_to(source).as_posix()
        for name, file in used_by(module):
            used = file.relative_to(source).as_posix()
            if used != user:
                found.setdefault((user, used), set()).add(name)
    return found


def circles(arrows: set[tuple[str, str]]) -> list[frozenset[str]]:
    """The sets of files that reach each other, the largest first."""
    below: dict[str, set[str]] = {}
    for user, used in arrows:
        below.setdefault(user, set()).add(used)

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for file in below.get(waiting.pop(), set()) - seen:
                seen.add(file)
                waiting.append(file)
        return seen

    all_reached = {file: reached(file) for file in below}
    found = {
        frozenset(other for other in seen if file in all_reached.get(other, set()))
        for file, seen in all_reached.items()
        if file in seen
    }
    return sorted(found, key=lambda circle: (-len(circle), sorted(circle)))
