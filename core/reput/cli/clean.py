"""`reput clean`: what retention would remove now, when and why; and the removing of it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from reput.cli.options import ConfigOption, FormatOption, OutputFormat, SetOption, StoreArgument, settings_of
from reput.cli.output import print_table, write_line
from reput.store.retention_plan import SegmentFate

__all__ = ["EXAMPLE", "clean"]

EXAMPLE = "reput send store orders --count 3 && reput clean store --dry-run"
COLUMNS = ("segment", "from", "until", "size", "last_modified", "goes", "due", "reason")


def clean(
    store: StoreArgument,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only say what would go; not a byte is changed, and a writer may be at work."),
    ] = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> None:
    """Remove segments of the log that have had their time, without waiting for the hour of deleteWhen.

    A row for each segment says whether it goes, and why; `due` is when an open store removes it by itself. The views
    follow when the store is opened. A store that a process has open is refused: it cleans itself.
    """
    from reput.process.control_socket import group_status
    from reput.store.identity import require_store
    from reput.store.offline_retention import clean_store, plan_cleaning

    settings = settings_of(store, config, assignments).settings
    require_store(store)
    if dry_run:
        live = group_status(store)
        cursors = None if live is None else {row.name: row.durable_cursor for row in live.dispatchers}
        fates = plan_cleaning(store, settings, cursors=cursors)
    else:
        fates = clean_store(store, settings)
    print_table([fate_row(fate) for fate in fates], COLUMNS, output_format)
    if output_format is OutputFormat.TEXT:
        write_line(summary(fates, dry_run))


def fate_row(fate: SegmentFate) -> dict[str, Any]:
    """Return the row for one segment."""
    segment = fate.segment
    return {
        "segment": segment.path.name,
        "from": segment.begin,
        "until": segment.end,
        "size": segment.size,
        "last_modified": segment.last_modified,
        "goes": fate.goes,
        "due": fate.due,
        "reason": fate.reason,
        "missed_by": list(fate.missed_by),
    }


def summary(fates: list[SegmentFate], dry_run: bool) -> str:
    """Return the last line for people."""
    going = [fate for fate in fates if fate.goes]
    size = sum(fate.segment.size for fate in going)
    return f"{'would remove' if dry_run else 'removed'} {len(going)} of {len(fates)} segments, {size} bytes"
