"""The part of a traceback that an operator must read."""

from __future__ import annotations

import traceback

from reput.errors import DispatcherError
from reput.process.logs.exception_text import exception_line, exception_message, exception_text, without_frames


def test_the_last_line_of_a_traceback_says_what_went_wrong():
    """For reput's errors only the message; otherwise with the exception's name."""
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1, in run\n'
    assert exception_message(f"{trace}reput.errors.StoreError: no room: free=0\n") == "no room: free=0"
    assert exception_message(f"{trace}ValueError: 7") == "ValueError: 7"
    assert exception_message("dispatcher died: signal=SIGKILL") == "dispatcher died: signal=SIGKILL"
    assert exception_message(None) == "unknown"


def test_notes_behind_an_exception_are_not_taken_for_it():
    """The advice of reput's errors and the notes of plugins follow the exception."""
    try:
        raise DispatcherError("the view is gone: view=x", "Build it again.")
    except DispatcherError:
        text = traceback.format_exc()
    assert text.rstrip().endswith("Build it again.")
    assert exception_message(text) == "the view is gone: view=x"
    assert exception_line(text) == "reput.errors.DispatcherError: the view is gone: view=x"
    assert exception_line("one line") == exception_line("one line\nanother") == "one line"
    assert exception_line("") == ""


def test_an_error_of_any_size_begins_with_what_went_wrong():
    """The status has no room for frames; lines of the message itself stay, whatever they look like."""
    try:
        raise OSError(5, "Input/output error", "cursor")
    except OSError as error:
        said = exception_text(error)
        assert said == without_frames(traceback.format_exc()) == "OSError: [Errno 5] Input/output error: 'cursor'"
    refused = DispatcherError("two lines:\n  indented", "Build it again.")
    assert exception_text(refused).endswith("two lines:\n  indented\nBuild it again.")
    assert exception_message(exception_text(refused)) == "two lines:"
    assert without_frames("killed:\n  by hand") == "killed:\n  by hand"
