"""Errors as seen in a traceback, and in another process."""

from __future__ import annotations

import pickle
import traceback

import pytest

from reput import errors
from reput.filter import FilterSyntaxError, parse

ALL = [getattr(errors, name) for name in errors.__all__]


def make(kind: type[errors.ReputError]) -> errors.ReputError:
    """Return an error of a kind, with its own advice."""
    numbers = (7,) if issubclass(kind, errors.RequestRefused) else ()
    return kind(*numbers, "it is wrong: name=value", "Mend it.")


@pytest.mark.parametrize("kind", ALL)
def test_a_traceback_says_what_to_do(kind):
    """The advice is printed once, below the message."""
    text = "".join(traceback.format_exception(make(kind)))
    assert text.endswith("it is wrong: name=value\nMend it.\n")
    assert text.count("Mend it.") == 1


@pytest.mark.parametrize("kind", ALL)
def test_an_error_crosses_a_process_pool(kind):
    """With its text, advice and numbers."""
    error = make(kind)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), copy.advice, vars(copy)) == (str(error), error.advice, vars(error))


def test_a_filters_error_crosses_a_process_pool():
    """With the position that it names."""
    with pytest.raises(FilterSyntaxError) as raised:
        parse("price >")
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (str(copy), copy.position) == (str(raised.value), raised.value.position)
