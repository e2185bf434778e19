"""No module imports a module that imports it, directly or through others: each can be read and moved by itself."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from source_tree import modules


def imports_by_module() -> dict[str, set[str]]:
    """Return the modules that each module imports, also inside of functions and for types alone.

    The package itself is left out: the modules below take only the version from it, which another test holds.
    """
    names = {module.name for module in modules()}

    def module_of(name: str) -> str | None:
        while name and name not in names:
            name = name.rpartition(".")[0]
        return name or None

    found = {}
    for module in modules():
        imported = {module_of(name) for name, _ in module.imports() if name not in ("reput", "reput.__version__")}
        found[module.name] = {name for name in imported if name is not None} - {module.name}
    return found


def test_no_modules_import_each_other():
    """The order of imports is one from the bottom to the top, `TYPE_CHECKING` included."""
    try:
        TopologicalSorter(imports_by_module()).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None
