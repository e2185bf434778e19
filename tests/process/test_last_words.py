"""What an operator has to read of a traceback."""

from __future__ import annotations

from reput.process.last_words import last_words


def test_the_last_line_of_a_traceback_says_what_went_wrong():
    """Where the error is ours its sentence alone; else with the exception's name."""
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1, in run\n'
    assert last_words(f"{trace}reput.errors.StoreError: no room: free=0\n") == "no room: free=0"
    assert last_words(f"{trace}ValueError: 7") == "ValueError: 7"
    assert last_words("dispatcher died: signal=SIGKILL") == "dispatcher died: signal=SIGKILL"
    assert last_words(None) == "unknown"
