"""The source tree as syntax: each module's imports and calls, for the tests of the tree."""

from __future__ import annotations

import ast
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

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the module's syntax."""
        return list(ast.walk(self.tree))

    @cached_property
    def imports(self) -> list[tuple[str, int]]:
        """Each imported full name with its line, including imports in functions and for types only."""
        package = self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]
        found = []
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found += [(alias.name, node.lineno) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                module = ".".join([*above, *([node.module] if node.module else [])])
                found += [(f"{module}.{alias.name}", node.lineno) for alias in node.names]
        return found

    @cached_property
    def names(self) -> list[tuple[str, int]]:
        """The names in the code with their lines: names, attributes as ``a.b.c``, and full imported names."""
        names = [(dotted(node), node.lineno) for node in self.nodes if isinstance(node, ast.Name | ast.Attribute)]
        return [*names, *self.imports]


def dotted(node: ast.expr) -> str:
    """Return an expression as it is written, names and attributes quickly."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ast.unparse(node)


@cache
def modules() -> list[Module]:
    """Return every module of the product."""
    found = []
    for root in SOURCE_ROOTS:
        for path in sorted((ROOT / root).rglob("*.py")):
            parts = path.relative_to(ROOT / root).with_suffix("").parts
            found.append(Module(path, ".".join(parts[:-1] if parts[-1] == "__init__" else parts)))
    return found
