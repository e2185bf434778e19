"""lazy_exports: the public names of a package, imported when they are first used.

A package names them once, in imports that type checkers read and this function, too:

    TYPE_CHECKING = False
    if TYPE_CHECKING:
        from reput.filter.tags import TagFilter as TagFilter
    else:
        __getattr__, __dir__ = lazy_exports(__name__, __file__)
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["lazy_exports"]


def lazy_exports(package: str, path: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of *package*; the first one also gives its ``__all__``.

    Args:
        path: of the package's own source, which is read when a name is used first, not when the package is imported.
            In it, a module of the package itself is ``from package import it as it``.
    """
    homes: dict[str, str] = {}
    loaded = vars(sys.modules[package])

    def known() -> dict[str, str]:
        if not homes:
            homes.update(exported_names(path))
        return homes

    def get(name: str) -> object:
        if name == "__all__":
            return sorted(known())
        home = None if name.startswith("__") else known().get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # Not at the top: a command imports this module while Ctrl-C would still print a traceback.
        from importlib import import_module

        value = import_module(f"{home}.{name}") if home == package else getattr(import_module(home), name)
        loaded[name] = value
        return value

    return get, lambda: sorted({*loaded, *known()})


def exported_names(path: str) -> dict[str, str]:
    """Return the names that the module at *path* imports as themselves, each with the module that has it.

    The lines are split at blanks: `ast` takes longer to load than all else that ``import reput`` loads.
    """
    homes = {}
    with open(path, encoding="utf-8") as source:
        for line in source:
            # from MODULE import NAME as NAME
            words = line.split()
            if words[::2] == ["from", "import", "as"] and words[3] == words[5]:
                homes[words[3]] = words[1]
    return homes
