"""An extension of Griffe: a module's public names are those that it imports as themselves, as type checkers have it."""

from __future__ import annotations

from typing import Any

import griffe

__all__ = ["PublicNames"]


class PublicNames(griffe.Extension):
    """Makes ``from reput.errors import StoreError as StoreError`` public without a list in ``__all__``."""

    def on_module_members(self, *, mod: griffe.Module, **kwargs: Any) -> None:
        """Called for each module once its members are known."""
        names = [name for name, member in mod.members.items() if member.is_alias and is_itself(member, name)]
        if mod.exports is None and names and mod.is_package:
            mod.exports = names


def is_itself(member: Any, name: str) -> bool:
    """Tell whether an import gives a thing its own name from a module of the product."""
    path = str(member.target_path)
    return path.startswith("reput") and path.rpartition(".")[2] == name and name != "lazy_exports"
