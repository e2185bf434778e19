"""The tree of errors: documented, used, and all in one place."""

from __future__ import annotations

import inspect

import pytest

from reput import errors
from source_tree import ROOT, modules


def error_classes() -> list[type[Exception]]:
    """Return every class of errors.py."""
    return [value for value in vars(errors).values() if inspect.isclass(value) and value.__module__ == errors.__name__]


@pytest.mark.parametrize("error", error_classes(), ids=lambda error: error.__name__)
def test_an_error_says_when_it_is_raised(error):
    """Its docstring is its own, and it can be imported by name."""
    assert error.__dict__.get("__doc__")
    assert error.__name__ in errors.__all__
    assert issubclass(error, errors.ReputError)


@pytest.mark.parametrize("error", error_classes(), ids=lambda error: error.__name__)
def test_an_error_is_raised_or_caught_somewhere(error):
    """Programs should not have to handle errors that cannot happen."""
    users = [
        module.source
        for module in modules()
        if module.name != "reput.errors" and error.__name__ in {name.rpartition(".")[2] for name, _ in module.names}
    ]
    assert users


def test_the_list_of_names_is_the_list_of_classes():
    """`__all__` holds every error, and nothing else."""
    assert sorted(errors.__all__) == sorted(error.__name__ for error in error_classes())


def test_the_tree_fits_on_a_screen_or_two():
    """An error class exists only if callers need to tell it apart."""
    assert len((ROOT / "core" / "reput" / "errors.py").read_text("utf-8").splitlines()) <= 180
