"""Advice of errors that leave their process as text: its note below the sentence gets a mark by which it is found.

    reput.errors.StoreError: the checkpoint belongs to another store: …
    Advice: Start the query with its own checkpoint.

Spark hands an error on as the traceback of the process that raised it, so what is not in the traceback is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import reput.errors
from reput.errors import ReputError

__all__ = ["advice_noted", "error_in"]

MARK = "Advice: "
OURS = re.compile(rf"^reput\.errors\.(\w+): (.+)(?:\n{MARK}(.+))?", re.MULTILINE)


@contextmanager
def advice_noted() -> Iterator[None]:
    """Add the advice of reput errors raised inside the block to their tracebacks; also usable as a decorator."""
    try:
        yield
    except ReputError as error:
        # Replaces the unmarked note that the error adds when it is created.
        marked = f"{MARK}{error.advice}"
        others = (note for note in getattr(error, "__notes__", ()) if note not in (marked, error.advice))
        error.__notes__ = [marked, *others]
        raise


def error_in(text: str) -> ReputError | None:
    """Return the first reput error in a traceback's text, with its advice; None if there is none."""
    for name, sentence, advice in OURS.findall(text):
        found = getattr(reput.errors, name, None)
        if isinstance(found, type) and issubclass(found, ReputError):
            return found(sentence, advice)
    return None
