"""What Python files import, read from their text: at the top, inside a function and under TYPE_CHECKING alike."""

import ast
from collections.abc import Iterator
from pathlib import Path


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Give each name that a file imports, with the module it is from, and the line: `package.module.name`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
