"""write_project: creates the project of a new plugin, for `reput plugin new`."""

from __future__ import annotations

import re
from importlib.machinery import PathFinder
from importlib.resources import files
from pathlib import Path
from string import Template

from reput.errors import ConfigError
from reput_hooks import API_VERSION

__all__ = ["ProjectNames", "write_project"]

# Template → path in the project's folder.
FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "gitignore": ".gitignore",
    "tox.ini": "tox.ini",
    "src/__init__.py": "src/$module/__init__.py",
    "tests/test_dispatcher.py": "tests/test_$module.py",
}
NAME = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")
CHOOSE_ANOTHER = "Choose another name."
# Limit for the entry point of a dispatcher.
NAME_SIZE_MAX = 63
TYPED = "src/$module/py.typed"


class ProjectNames:
    """The names in a project, derived from the dispatcher's name.

    Raises:
        ConfigError: the name is not valid for a module, is too long, or belongs to an installed module.
    """

    def __init__(self, name: str) -> None:
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"a new dispatcher's name has small letters and digits, and _ or - between words: name={name!r}",
                "Name it for its view, for example word_count.",
            )
        words = re.split("[_-]", name)
        if len(name) > NAME_SIZE_MAX:
            raise ConfigError(f"a dispatcher's name is too long: name={name} size={len(name)} max={NAME_SIZE_MAX}")
        self.name = name
        self.module = f"reput_{'_'.join(words)}"
        # For example reput_hooks, which other code could then no longer import.
        if PathFinder.find_spec(self.module) is not None:
            raise ConfigError(f"a module of this name is installed: name={name} module={self.module}", CHOOSE_ANOTHER)
        self.distribution = self.module.replace("_", "-")
        # Without the suffix it might collide with a name that the module imports, or be None.
        self.class_name = "".join(word.capitalize() for word in words) + "View"

    def substitutes(self) -> dict[str, str | int]:
        """Return the values of the ``$$word`` placeholders in templates."""
        return {**vars(self), "api_version": API_VERSION}


def write_project(names: ProjectNames, folder: Path) -> list[Path]:
    """Create *folder*, write the project into it, and return its files.

    Raises:
        ConfigError: *folder* exists and is not empty.
        OSError: a file cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"the directory is not empty: directory={folder}", "Give another one with --directory.")
    substitutes = names.substitutes()
    templates = files(__name__) / "templates"
    written: list[Path] = []
    for template, target in FILES.items():
        text = (templates / f"{template}.template").read_text("utf-8")
        written.append(write(folder / Template(target).substitute(substitutes), Template(text).substitute(substitutes)))
    written.append(write(folder / Template(TYPED).substitute(substitutes), ""))
    return written


def write(path: Path, text: str) -> Path:
    """Write one file, and create its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path
