"""`reput lake`: the files of a lake: optimize, vacuum."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from msgspec import to_builtins

from reput.cli.terminal.options import (
    CatalogOption,
    CatalogTableOption,
    FormatOption,
    LakeFormat,
    LakeFormatOption,
    OutputFormat,
    StorageOption,
    epilog,
    storage_options_in,
    whole_number,
)
from reput.cli.terminal.output import Printer
from reput.cli.terminal.rows import time_text
from reput.plugin_jobs import DELTA_OPTIMIZE, DELTA_VACUUM, find_export

__all__ = ["register"]

MADE = "reput send store orders --count 3 && reput export store lake"
EXAMPLES = {
    "optimize": f"{MADE} && reput lake optimize lake",
    "vacuum": f"{MADE} && reput lake vacuum lake --dry-run",
}
RANGES_SHOWN = 8

LakeArgument = Annotated[
    str,
    typer.Argument(
        metavar="LAKE",
        help="Folder of the log's table, or of typed tables, or its address in an object store, such as "
        "s3://bucket/lake.",
        show_default=False,
    ),
]
TableOption = Annotated[
    str | None,
    typer.Option("--table", metavar="NAME", help="Only this typed table, and its dead letters."),
]


def optimize(
    lake: LakeArgument,
    table: TableOption = None,
    lake_format: LakeFormatOption = LakeFormat.DELTA,
    catalog: CatalogOption = None,
    catalog_table: CatalogTableOption = None,
    storage_options: StorageOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> None:
    """Merge the small files of a lake into files of up to 128 MiB, also those of the present day.

    The rows stay the same. Readers and a running export are not disturbed: the old files stay until `reput lake vacuum`
    or the export's own maintenance removes them. Tables that reput did not write are left alone.
    """
    find_export(DELTA_OPTIMIZE)(
        lake,
        table=table,
        storage_options=storage_options_in(storage_options or ()),
        lake_format=lake_format.value,
        catalog=catalog,
        catalog_table=catalog_table,
        on_table=row_by_row(Printer(output_format, optimized_text)),
    )


def vacuum(
    lake: LakeArgument,
    table: TableOption = None,
    hours: Annotated[
        int,
        typer.Option(
            "--hours",
            metavar="N",
            parser=whole_number(1),
            help="Age from which files go. A version of the table that is younger can still be read afterwards.",
        ),
    ] = 168,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    lake_format: LakeFormatOption = LakeFormat.DELTA,
    catalog: CatalogOption = None,
    catalog_table: CatalogTableOption = None,
    storage_options: StorageOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> None:
    """Remove files that the present rows do not need: replaced ones, and those that failed attempts left.

    Before the files of a table go, a row says how many they are, which versions of the table can then no longer be
    read, and how far readers can still go back. Files and tables that reput did not write are left alone.
    """
    find_export(DELTA_VACUUM)(
        lake,
        table=table,
        hours=hours,
        dry_run=dry_run,
        storage_options=storage_options_in(storage_options or ()),
        lake_format=lake_format.value,
        catalog=catalog,
        catalog_table=catalog_table,
        on_table=row_by_row(Printer(output_format, vacuumed_text)),
    )


def row_by_row(printer: Printer) -> Any:
    """Return a function that prints a report at once."""

    def show(report: Any) -> None:
        printer.row(to_builtins(report))
        sys.stdout.flush()

    return show


def optimized_text(row: Mapping[str, Any]) -> str:
    """Return the report of one table as text."""
    if row["skipped"] is not None:
        return f"{row['table']}: left alone, {row['skipped']}"
    return (
        f"{row['table']}: {row['files_before']} files of {row['bytes_before']} bytes before, "
        f"{row['files']} of {row['bytes']} bytes now; table version {row['table_version']}"
    )


def vacuumed_text(row: Mapping[str, Any]) -> str:
    """Return the report of one table as text."""
    if row["skipped"] is not None:
        return f"{row['table']}: left alone, {row['skipped']}"
    verb = "would remove" if row["dry_run"] else "removes"
    lost = [f"{first}" if first == last else f"{first}..{last}" for first, last in row["versions_lost"]]
    more = f" and {len(lost) - RANGES_SHOWN} more ranges" if len(lost) > RANGES_SHOWN else ""
    gone = (
        f"then unreadable: versions {', '.join(lost[:RANGES_SHOWN])}{more}" if lost else "no version becomes unreadable"
    )
    left = "no version is left"
    if row["readable_from_version"] is not None:
        made = row["readable_from_timestamp"]
        since = "" if made is None else f" of {time_text(made)}"
        left = f"every version from {row['readable_from_version']}{since} on stays readable"
    return f"{row['table']}: {verb} {row['files']} files of {row['bytes']} bytes; {gone}; {left}"


def register(application: typer.Typer) -> None:
    """Add the verbs to *application*."""
    for name, verb in (("optimize", optimize), ("vacuum", vacuum)):
        application.command(name, epilog=epilog(EXAMPLES[name]))(verb)
