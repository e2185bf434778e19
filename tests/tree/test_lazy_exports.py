"""The names that a package exports lazily: type checkers see the same names as programs."""

from __future__ import annotations

import ast
import importlib

import pytest

from source_tree import ROOT

PACKAGES = ("reput", "reput.filter")


def shown_to_type_checkers(package: str) -> set[tuple[str, str]]:
    """Return module and name of every import under ``TYPE_CHECKING``."""
    path = ROOT / "core" / package.replace(".", "/") / "__init__.py"
    shown = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for statement in node.body:
                assert isinstance(statement, ast.ImportFrom)
                for alias in statement.names:
                    assert alias.asname == alias.name, "without `as` a type checker does not export it"
                    shown.add((str(statement.module), alias.name))
    return shown


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_see_the_names_that_a_program_gets(package):
    """The same names from the same modules, and all of them in ``__all__``."""
    module = importlib.import_module(package)
    shown = shown_to_type_checkers(package)
    assert sorted(name for _, name in shown) == module.__all__
    for home, name in shown:
        wanted = importlib.import_module(f"{home}.{name}") if home == package else None
        assert getattr(module, name) is (wanted or getattr(importlib.import_module(home), name))


@pytest.mark.parametrize("package", PACKAGES)
def test_an_unknown_name_is_an_attribute_error(package):
    """Like in any module; `dir` lists the names before they are loaded."""
    module = importlib.import_module(package)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        module.nothing  # noqa: B018
    assert set(module.__all__) <= set(dir(module))


def test_every_error_is_a_public_name():
    """A program can catch every error of a public method without a private import."""
    import reput
    from reput import errors

    assert set(errors.__all__) <= set(reput.__all__)


def test_every_public_class_and_function_has_a_docstring():
    """`help` documents each of them."""
    import reput

    public = [getattr(reput, name) for name in reput.__all__]
    methods = [
        (owner.__name__, name)
        for owner in public
        if isinstance(owner, type) and owner.__module__.startswith("reput.embedded")
        for name, value in vars(owner).items()
        if not name.startswith("_") and not getattr(value, "__doc__", None)
    ]
    assert not [thing for thing in public if not thing.__doc__]
    assert not methods


def test_help_shows_what_a_store_and_a_worker_offer_and_nothing_internal():
    """Some thirty methods and properties of a store beside their twins; four of a worker."""
    import reput

    shown = {name for name in dir(reput.Store) if not name.startswith("_")}
    twins = {name for name in shown if name.startswith("a") and name[1:] in shown} | {"await_durable", "await_for"}
    assert len(shown - twins) <= 32, "a new one is worth its place only if it is worth that of another"
    assert {name for name in dir(reput.Worker) if not name.startswith("_")} == {"arun", "run", "statistics", "stop"}
