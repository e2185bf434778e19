"""Entry of the contract: lists its clauses and tries one. Found by entry point, group ``reput.contract``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reput.process.contract.clauses import CLAUSES
from reput.process.contract.sample_store import SAMPLES
from reput.process.contract.trial import Subject
from reput.settings import Settings, load_settings
from reput_hooks.sample import Sample

__all__ = ["promises", "run_clause", "try_clause"]


def promises() -> dict[str, str]:
    """Return the promise of every clause by the clause's name, in order."""
    return {name: (clause.__doc__ or "").strip().partition("\n")[0] for name, clause in CLAUSES.items()}


def run_clause(
    clause: str, dispatcher: str, settings: Settings, samples: Sequence[Sample], directory: Path
) -> str | None:
    """Try one clause in the empty *directory*; return why it does not apply, or None if the promise is kept.

    Raises:
        ConfigError: there is no such dispatcher, or one of its options is wrong.
        AssertionError: the promise is broken.
        Exception: the plugin raised it, which also breaks the promise.
    """
    return CLAUSES[clause](Subject(dispatcher, settings, samples or SAMPLES), directory)


def try_clause(
    clause: str,
    *,
    dispatcher: str,
    options: Mapping[str, object],
    samples: Sequence[Sample],
    directory: Path,
) -> str | None:
    """Try one clause as `run_clause` does, given only the dispatcher's options; `reput_hooks.testing` calls it."""
    given: dict[str, Any] = {f"dispatchers.{dispatcher}.{option}": value for option, value in options.items()}
    settings = load_settings(dispatchers=[dispatcher], **given).settings
    return run_clause(clause, dispatcher, settings, samples, directory)
