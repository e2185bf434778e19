"""The source tree as syntax: each module's imports and calls, for the tests of the tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

__all__ = ["OURS", "ROOT", "Module", "modules"]

ROOT = Path(__file__).parents[1]
SOURCE_ROOTS = ("core", "hooks", "plugins")
OURS = ("reput", "reput_hooks", "reput_plugins", "pyspark_reput")


@dataclass(frozen=True)
class Module:
    """One module of the product: its file, and its name as it is imported."""

    path: Path
    name: str

    @cached_property
    def tree(self) -> ast.Module:
        """The module's syntax."""
        return ast.parse(self.path.read_text("utf-8"))

    @property
    def source(self) -> str:
        """The path from the root of the repository."""
        return str(self.path.relative_to(ROOT))

    def imports(self) -> Iterator[tuple[str, int]]:
        """Yield each imported full name with its line, including imports in functions and for types only."""
        package = self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield alias.name, node.lineno
            elif isinstance(node, ast.ImportFrom):
                above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                module = ".".join([*above, *([node.module] if node.module else [])])
                for alias in node.names:
                    yield f"{module}.{alias.name}", node.lineno

    @cached_property
    def names(self) -> list[tuple[str, int]]:
        """The names in the code with their lines: names, attributes as ``a.b.c``, and full imported names."""
        names = [
            (node.id if isinstance(node, ast.Name) else ast.unparse(node), node.lineno)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Name | ast.Attribute)
        ]
        return [*names, *self.imports()]


@cache
def modules() -> list[Module]:
    """Return every module of the product."""
    found = []
    for root in SOURCE_ROOTS:
        for path in sorted((ROOT / root).rglob("*.py")):
            parts = path.relative_to(ROOT / root).with_suffix("").parts
            found.append(Module(path, ".".join(parts[:-1] if parts[-1] == "__init__" else parts)))
    return found
