"""Errors of reput's that went through Spark, which hands them on as text with a traceback of every process they passed.

The text is that of the first process, so the innermost error comes first.
"""

from __future__ import annotations

import re

import reput.errors
from reput.errors import DispatcherError, ReputError

__all__ = ["from_spark"]

OURS = re.compile(r"^reput\.errors\.(\w+): (.+)", re.MULTILINE)
RAISED_IN_PYTHON = re.compile(
    r"^(?!Caused by|(?:org|java|scala)\.)([\w.]*(?:Error|Exception|Interrupt)(?:: .+)?)$", re.MULTILINE
)


def from_spark(error: Exception) -> ReputError:
    """Return the error of reput's that *error* tells of, else one with the sentence in which something failed."""
    text = str(error)
    for name, sentence in OURS.findall(text):
        found = getattr(reput.errors, name, None)
        if isinstance(found, type) and issubclass(found, ReputError):
            return found(sentence)
    raised = RAISED_IN_PYTHON.findall(text)
    first_line = text.strip().partition("\n")[0]
    return DispatcherError(f"Spark could not do the export: error={raised[-1] if raised else first_line}")
