"""`reput check`: verifies every record, and every view against the log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from reput.cli.terminal.failure import ANSWER_IS_NO
from reput.cli.terminal.options import (
    ConfigOption,
    EngineOption,
    FormatOption,
    OutputFormat,
    SetOption,
    StoreArgument,
    settings_of,
)
from reput.cli.terminal.output import Printer
from reput.cli.terminal.progress import progress_bar
from reput.plugin_jobs import LOCAL, find_engine

__all__ = ["EXAMPLE", "check"]

EXAMPLE = "reput send store orders --count 3 && reput check store"


def check(
    store: StoreArgument,
    engine: EngineOption = LOCAL,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> int:
    """Verify every record of the log, and compare every view with the log. Nothing is changed.

    A view that lags holds a correct prefix. Exit code 1: bytes of the log are damaged, or a view differs.
    With --engine spark the log is verified by Spark's workers; the report is the same.
    """
    if engine == LOCAL:
        from reput.store.check.check import check_store as run
    else:
        run = find_engine(engine).check_store
    settings = settings_of(store, config, assignments).settings
    total = log_size(store)
    with progress_bar(f"check {store}") as update:
        report = run(store, settings, lambda done: update(done, total))
    Printer(output_format, check_text).row(to_builtins(report))
    return 0 if report.ok else ANSWER_IS_NO


def log_size(store: Path) -> int:
    """Return the total size of the log's files, 0 if there are none."""
    sizes = []
    for file in (store / "commitlog").glob("*"):
        # Retention may remove files meanwhile.
        with contextlib.suppress(FileNotFoundError):
            sizes.append(file.stat().st_size)
    return sum(sizes)


def check_text(row: Mapping[str, Any]) -> str:
    """Return the report as text: the log, the views, and finally whether all is well."""
    return "\n".join(check_lines(row))


def check_lines(row: Mapping[str, Any]) -> Iterator[str]:
    closed = "closed cleanly" if row["clean_shutdown"] else "not closed cleanly"
    yield f"log: {row['records']} records in {row['bytes']} bytes of {row['segments']} segments, {closed}"
    for kind in ("damage", "stale"):
        for found in row[kind]:
            size = found["until"] - found["from"]
            yield f"{kind}: from {found['from']} until {found['until']} ({size} bytes): {found['reason']}"
    for name, view in row["views"].items():
        yield f"{name}: {view_text(view)}"
        for difference in view["differences"]:
            yield f"    {difference}"
        more = view["difference_count"] - len(view["differences"])
        if more > 0:
            yield f"    and {more} more"
    for note in row["notes"]:
        yield f"note: {note}"
    different = [name for name, view in row["views"].items() if view["state"] == "different"]
    problems = (["damage"] if row["damage"] else []) + different
    yield "ok" if row["ok"] else f"NOT OK: {', '.join(problems)}"


def view_text(view: Mapping[str, Any]) -> str:
    """Return state and nonzero counts of one view."""
    state = {"behind": f"behind by {view['behind_bytes']} bytes of the log"}.get(view["state"], view["state"])
    counts = [
        f"{view[f'{name}_count']} {text}"
        for name, text in (
            ("expired", "expired"),
            ("stale", "stale"),
            ("unverified", "without data to compare with"),
        )
        if view[f"{name}_count"]
    ]
    return f"{state} ({', '.join(counts)})" if counts else state
