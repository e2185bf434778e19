"""`reput export`: the log as a Delta table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import to_builtins

from reput.cli.options import ConfigOption, FormatOption, OutputFormat, SetOption, StoreArgument, settings_of
from reput.cli.output import Printer
from reput.cli.progress import progress_bar
from reput.exports import DELTA, find_export

__all__ = ["EXAMPLE", "export"]

EXAMPLE = "reput send store orders --count 3 && reput export store lake"


def export(
    store: StoreArgument,
    lake: Annotated[Path, typer.Argument(metavar="LAKE", help="Folder of the Delta table; made if it is not there.")],
    topics: Annotated[
        list[str] | None, typer.Option("--topic", metavar="T", help="Only this topic; may be repeated.")
    ] = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> None:
    """Bring a Delta table up to the durable end of the log, each record exactly once, then stop.

    A second run adds what has come since. Needs the extra "spark", and Java; `--set spark.master=…` and whatever else
    Spark knows reach Spark.
    """
    spark_options = settings_of(store, config, assignments).settings.spark_options
    run = find_export(DELTA)
    with progress_bar(f"export to {lake}") as update:
        report = run(store, lake, topics=topics, settings=spark_options, on_progress=update)
    Printer(output_format, report_text).row(to_builtins(report))


def report_text(row: Mapping[str, Any]) -> str:
    """Return the report for people."""
    return (
        f"{row['records']} records in {row['files']} files of {row['bytes']} bytes, "
        f"from {row['from']} until {row['until']}, in {row['seconds']:.1f} s; table version {row['table_version']}"
    )
