"""`reput rebuild`: views built again from the log."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import to_builtins

from reput.cli.options import ConfigOption, FormatOption, OutputFormat, SetOption, StoreArgument, settings_of
from reput.cli.output import Printer
from reput.cli.progress import progress_bar

__all__ = ["EXAMPLE", "rebuild"]

EXAMPLE = "reput send store orders --count 3 && reput rebuild store --target rebuilt"


def rebuild(
    store: StoreArgument,
    target: Annotated[
        Path, typer.Option("--target", metavar="DIR", help="Where the views are built, laid out as in a store.")
    ],
    views: Annotated[
        list[str] | None, typer.Argument(metavar="VIEW", help="Dispatchers; by default those that are enabled.")
    ] = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> None:
    """Have dispatchers, in processes of their own, build their views again from the log, into another directory.

    The store is only read.
    """
    from reput.process.rebuild import rebuild as rebuild_views

    settings = settings_of(store, config, assignments).settings
    wanted = tuple(dict.fromkeys(views or settings.dispatchers))
    done_of = dict.fromkeys(wanted, 0)
    printer = Printer(output_format, rebuild_text)
    with progress_bar(f"rebuild {', '.join(wanted)}") as update:

        def show(view: str, done: int, total: int) -> None:
            done_of[view] = done
            update(sum(done_of.values()), total * len(wanted))

        for row in rebuild_views(store, wanted, target, settings, on_progress=show):
            printer.row(to_builtins(row))


def rebuild_text(row: Mapping[str, Any]) -> str:
    """Return what became of one view, for people."""
    records = "-" if row["records"] is None else row["records"]
    log = f"{records} records, {row['bytes']} bytes of the log"
    return f"{row['view']}: {log} in {row['seconds']:.2f} s to {row['target']}"
