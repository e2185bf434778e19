"""lazy_exports: the public names of a package, imported when they are first used.

A package names them twice: in imports under ``TYPE_CHECKING``, for type checkers, and by module for this function. A
test of the tree compares the two.

    if TYPE_CHECKING:
        from reput.filter.tags import TagFilter as TagFilter
    else:
        __getattr__, __dir__, __all__ = lazy_exports(__name__, {"reput.filter.tags": ("TagFilter",)})
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["lazy_exports"]


def lazy_exports(
    package: str, names: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of *package*.

    Args:
        names: by module the names that it gives. A module of *package* itself is given whole by ``package: (module,)``.
    """
    homes = {name: home for home, given in names.items() for name in given}
    loaded = vars(sys.modules[package])

    def get(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # Not at the top: a command imports this module while Ctrl-C would still print a traceback.
        from importlib import import_module

        value = import_module(f"{home}.{name}") if home == package else getattr(import_module(home), name)
        loaded[name] = value
        return value

    return get, lambda: sorted({*loaded, *homes}), sorted(homes)
