"""`reput plugin`: the dispatchers that are installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reput.cli.failure import ANSWER_IS_NO
from reput.cli.options import FormatOption, OutputFormat
from reput.cli.output import print_table

if TYPE_CHECKING:
    from reput.process.catalogue import CatalogueEntry
    from reput.process.describe import Answer

__all__ = ["LIST_EXAMPLE", "list_plugins"]

LIST_EXAMPLE = "reput plugin list"


def list_plugins(output_format: FormatOption = OutputFormat.TEXT) -> int:
    """List the installed dispatchers: where each comes from, and whether it can be loaded.

    Each is imported in a process of its own and asked what it declares. Exit code 1: one of them is BROKEN.
    """
    from reput.process.catalogue import installed_dispatchers
    from reput.process.describe import describe

    entries = sorted(installed_dispatchers().values(), key=lambda entry: entry.name)
    rows = [plugin_row(entry, describe(entry, {})) for entry in entries]
    print_table(rows, ("name", "distribution", "version", "state", "reads", "after", "origin", "error"), output_format)
    return ANSWER_IS_NO if any(row["state"] == "BROKEN" for row in rows) else 0


def plugin_row(entry: CatalogueEntry, answer: Answer) -> dict[str, Any]:
    """Return the row of one dispatcher.

    READY: it was loaded. OPTIONS: it was loaded and cannot run without options. BROKEN: it cannot be loaded.
    """
    described = answer.description
    broken = answer.broken.rstrip().rpartition("\n")[2] if answer.broken else None
    return {
        "name": entry.name,
        "distribution": entry.distribution,
        "version": entry.version,
        "state": "BROKEN" if broken else "OPTIONS" if answer.refused else "READY",
        "module": entry.module,
        "origin": entry.origin,
        "editable": entry.editable,
        "reads": described.reads if described else None,
        "feeds": described.feeds if described else None,
        "after": list(described.after) if described else None,
        "options": [option.name for option in described.options] if described else None,
        "error": broken or answer.refused,
    }
