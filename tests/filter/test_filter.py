"""The package `reput.filter` itself."""

from __future__ import annotations

import doctest
import subprocess
import sys

import pytest

import reput.filter


def test_every_public_name_is_found():
    """By its name and in a listing of the module."""
    assert reput.filter.__all__
    for name in reput.filter.__all__:
        assert getattr(reput.filter, name) is not None
        assert name in dir(reput.filter)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    """Like in any module."""
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = reput.filter.no_such_name


def test_the_example_in_the_docstring_runs():
    """The first example that a reader tries must work."""
    names = {name: getattr(reput.filter, name) for name in reput.filter.__all__}
    assert doctest.testmod(reput.filter, extraglobs=names).attempted == 2
    assert doctest.testmod(reput.filter, extraglobs=names).failed == 0


def test_the_string_hash_loads_no_parser():
    """The store needs the hash in every process, and the parser in none."""
    script = "import sys, reput.filter.string_hash; print([m for m in sys.modules if m.startswith('reput.filter.')])"
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "['reput.filter.string_hash']"
