"""Errors passed on as text keep their message and their advice."""

from __future__ import annotations

import traceback

import pytest

from reput.errors import DamagedStore, ReputError, StoreError
from reput.table.advice_notes import advice_noted, error_in


@advice_noted()
def refuse(error: ReputError) -> None:
    """Raise *error*, like a worker."""
    raise error


def text_of(error: ReputError) -> str:
    """Return the traceback of *error*, followed by the exception that it caused."""
    try:
        try:
            with advice_noted():
                refuse(error)
        except ReputError as first:
            raise RuntimeError("a task failed") from first
    except RuntimeError:
        return traceback.format_exc()
    raise AssertionError


@pytest.mark.parametrize(
    "error",
    [StoreError("it is cut: at=7", "Begin anew: at 7."), DamagedStore("bytes are no record: from=1 until=2")],
    ids=["own", "of the class"],
)
def test_an_error_is_found_in_the_text_that_others_hand_on(error: ReputError):
    """With the same class, message and advice as where it was raised."""
    text = text_of(error)
    found = error_in(text)
    assert found is not None
    assert (type(found), str(found), found.advice) == (type(error), str(error), error.advice)
    assert text.count("Advice: ") == text.count(error.advice) == 1


def test_text_that_tells_of_no_error_of_ours_gives_none():
    """Whatever the text."""
    assert error_in("reput.errors.Unheard: of\nValueError: no") is None
