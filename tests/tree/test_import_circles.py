"""No module imports a module that imports it, directly or indirectly: each can be read and moved separately."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from source_tree import modules


def imports_by_module() -> dict[str, set[str]]:
    """Return the modules that each module imports, including imports in functions and for types only.

    The package itself is excluded: modules take only the version from it, which another test ensures.
    """
    names = {module.name for module in modules()}

    def module_of(name: str) -> str | None:
        while name and name not in names:
            name = name.rpartition(".")[0]
        return name or None

    found = {}
    for module in modules():
        imported = {module_of(name) for name, _ in module.imports if name not in ("reput", "reput.__version__")}
        found[module.name] = {name for name in imported if name is not None} - {module.name}
    return found


def test_no_modules_import_each_other():
    """Imports have an order from bottom to top, including those under `TYPE_CHECKING`."""
    try:
        TopologicalSorter(imports_by_module()).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None
