"""No module imports a module that imports it, directly or through others: each can be read and moved by itself."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from source_tree import modules

# Modules of `reput.consume` that still import each other. Names only leave this set.
CIRCLES_ALLOWED = {
    "consumer",
    "consumer_group",
    "shared_queue",
}


def is_allowed(name: str) -> bool:
    """Tell whether a module may still be in a circle."""
    return name.startswith("reput.consume.") and name.rpartition(".")[2] in CIRCLES_ALLOWED


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
    graph = {
        name: {other for other in imported if not (is_allowed(name) and is_allowed(other))}
        for name, imported in imports_by_module().items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None
