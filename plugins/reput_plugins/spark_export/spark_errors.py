"""Errors of reput's that went through Spark, which hands them on as text with a traceback of every process they passed.

The text is that of the first process, so the innermost error comes first.
"""

from __future__ import annotations

import re

from reput.errors import DispatcherError, ReputError
from reput.table.advice_notes import error_in

__all__ = ["from_spark"]

RAISED_IN_PYTHON = re.compile(
    r"^(?!Caused by|(?:org|java|scala)\.)([\w.]*(?:Error|Exception|Interrupt)(?:: .+)?)$", re.MULTILINE
)


def from_spark(error: Exception) -> ReputError:
    """Return the error of reput's that *error* tells of, else one with the sentence in which something failed."""
    text = str(error)
    found = error_in(text)
    if found is not None:
        return found
    raised = RAISED_IN_PYTHON.findall(text)
    first_line = text.strip().partition("\n")[0]
    return DispatcherError(f"Spark could not do the export: error={raised[-1] if raised else first_line}")
