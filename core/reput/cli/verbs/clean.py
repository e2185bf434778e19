"""`reput clean`: shows which segments retention would remove now, when and why; or removes them."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from reput.cli.terminal.options import ConfigOption, FormatOption, OutputFormat, SetOption, StoreArgument, settings_of
from reput.cli.terminal.output import print_table, write_line

if TYPE_CHECKING:
    from reput.store.retention.retention_plan import SegmentFate

__all__ = ["EXAMPLE", "clean"]

EXAMPLE = "reput send store orders --count 3 && reput clean store --dry-run"
# How long the writing process may take to remove the segments it announced, and how often that is checked.
PATIENCE_S = 60.0
LOOK_S = 0.05
COLUMNS = ("segment", "from", "until", "size", "last_modified", "goes", "due", "reason")


def clean(
    store: StoreArgument,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Only show what would be removed. Changes nothing, and works while a writer runs."
        ),
    ] = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> None:
    """Remove expired segments of the log now, without waiting for the hour of deleteWhen.

    Each segment has a row that says whether it is removed, and why; `due` is when an open store removes it by itself.
    If a process has the store open, that process removes the segments by its own settings. Otherwise the views are
    adapted at the next opening.
    """
    from reput.errors import GroupUnreachable
    from reput.process.control.control_socket import group_status
    from reput.store.retention.offline_retention import clean_store, plan_cleaning
    from reput.store.state.identity import require_store

    settings = settings_of(store, config, assignments).settings
    require_store(store)
    if dry_run:
        live = None
        # If the group cannot be asked for its cursors, plan with the positions that the views recorded last.
        with contextlib.suppress(GroupUnreachable):
            live = group_status(store)
        cursors = None if live is None else {row.name: row.durable_cursor for row in live.dispatchers}
        fates = plan_cleaning(store, settings, cursors=cursors)
    elif group_status(store) is not None:
        fates = have_cleaned(store)
    else:
        fates = clean_store(store, settings)
    print_table([fate_row(fate) for fate in fates], COLUMNS, output_format)
    if output_format is OutputFormat.TEXT:
        write_line(summary(fates, dry_run))


def have_cleaned(store: Path) -> list[SegmentFate]:
    """Ask the writing process of a store to remove segments; return the fate of each once they are gone.

    Raises:
        DispatcherError: it did not do so, or not in time.
    """
    from reput.errors import DispatcherError
    from reput.process.control.control_socket import request
    from reput.store.retention.retention_plan import SegmentFate

    answer = request(store, "clean")
    fates = msgspec.json.decode(answer, type=list[SegmentFate], dec_hook=lambda kind, text: kind(text))
    end = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    left = [fate.segment.path for fate in fates if fate.goes]
    while left := [path for path in left if path.exists()]:
        if time.monotonic() >= end:
            raise DispatcherError(
                f"the store's process has not removed them yet: segments={len(left)} first={left[0]}",
                "It continues to remove them; see `reput clean STORE --dry-run` and reput/log/group.log.",
            )
        pause.wait(LOOK_S)
    return fates


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
    """Return the summary line of the text output."""
    going = [fate for fate in fates if fate.goes]
    size = sum(fate.segment.size for fate in going)
    return f"{'would remove' if dry_run else 'removed'} {len(going)} of {len(fates)} segments, {size} bytes"
