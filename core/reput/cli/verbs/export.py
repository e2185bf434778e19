"""`reput export`: writes the log to a Delta or Iceberg table."""

from __future__ import annotations

import enum
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import to_builtins

from reput.cli.terminal.options import (
    CatalogOption,
    CatalogTableOption,
    ConfigOption,
    FormatOption,
    LakeFormat,
    LakeFormatOption,
    OutputFormat,
    SetOption,
    StorageOption,
    StoreArgument,
    settings_of,
    storage_options_in,
)
from reput.cli.terminal.output import Printer
from reput.cli.terminal.progress import progress_bar
from reput.plugin_jobs import DELTA, DELTA_FOLLOW, find_export

__all__ = ["EXAMPLE", "export"]


class OnCorruption(enum.StrEnum):
    """How an export treats damage of the log."""

    FAIL = "fail"
    REPORT = "report"


EXAMPLE = "reput send store orders --count 3 && reput export store lake"


def export(
    store: StoreArgument,
    lake: Annotated[
        str,
        typer.Argument(
            metavar="LAKE",
            help="Folder of the table, or its address in an object store, such as s3://bucket/lake. If the "
            "table is missing, it is created.",
        ),
    ],
    follow: Annotated[bool, typer.Option("--follow", help="Keep the table up to date until interrupted.")] = False,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", metavar="T", help="Only this topic; may be repeated.")
    ] = None,
    tables: Annotated[
        Path | None,
        typer.Option(
            "--tables",
            metavar="FILE",
            help="Keep the typed tables that this TOML file describes, in folders below LAKE, instead of one table of "
            "the log.",
        ),
    ] = None,
    lake_format: LakeFormatOption = LakeFormat.DELTA,
    catalog: CatalogOption = None,
    catalog_table: CatalogTableOption = None,
    storage_options: StorageOption = None,
    on_corruption: Annotated[
        OnCorruption,
        typer.Option(
            help="Treatment of damaged bytes of the log and of bodies that do not match their CRC: end with an error, "
            "or omit and report them."
        ),
    ] = OnCorruption.FAIL,
    store_id: Annotated[
        str | None,
        typer.Option(
            "--store-id",
            metavar="ID",
            help="The lake's name for this store, if the lake cannot recognise the store by its id or by its stored "
            "marks.",
        ),
    ] = None,
    name: Annotated[
        str,
        typer.Option(
            "--name",
            metavar="NAME",
            help="The export's name in the table: the option `name` of the dispatcher whose table this is.",
        ),
    ] = "export",
    accept_data_loss: Annotated[
        bool,
        typer.Option(
            "--accept-data-loss",
            help="Continue after records that retention removed before they were exported. Without this option the "
            "export is refused.",
        ),
    ] = False,
    accept_truncation: Annotated[
        bool,
        typer.Option(
            "--accept-truncation",
            help="Remove rows that contradict the log, even if lake and log share no record that shows where they "
            "diverge. Without this option the export is refused, and the error states the number of rows.",
        ),
    ] = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> None:
    """Bring a Delta or Iceberg table up to the durable end of the log, each record exactly once, then stop.

    A second run adds the newer records. With --follow the export keeps running and prints a row for each transaction,
    with the bytes of the log that the table still lacks. Ctrl-C and SIGTERM end it; the next run continues. It needs
    the extra "spark" and Java. Spark gets every `--set spark.NAME=VALUE`.
    """
    given = {
        "tables": tables,
        "topics": topics,
        "settings": settings_of(store, config, assignments).settings.spark_options,
        "storage_options": storage_options_in(storage_options or ()),
        "on_corruption": on_corruption.value,
        "store_id": store_id,
        "name": name,
        "fail_on_data_loss": not accept_data_loss,
        "accept_truncation": accept_truncation,
        "lake_format": lake_format.value,
        "catalog": catalog,
        "catalog_table": catalog_table,
    }
    if follow:
        rows = find_export(DELTA_FOLLOW)
        with progress_bar(f"follow {store}") as update, terminated_in_order():
            follow_rows(rows(store, lake, **given, on_progress=update), output_format)
        return
    run = find_export(DELTA)
    with progress_bar(f"export to {lake}") as update:
        report = run(store, lake, **given, on_progress=update)
    Printer(output_format, report_text).row(to_builtins(report))


def follow_rows(rows: Any, output_format: OutputFormat) -> None:
    """Print transactions as they are committed, until an interrupt."""
    printer = Printer(output_format, follow_text)
    with closing(rows):
        for row in rows:
            printer.row(to_builtins(row))
            sys.stdout.flush()


@contextmanager
def terminated_in_order() -> Iterator[None]:
    """Let SIGTERM end the block like Ctrl-C, but as a success, because following never ends by itself."""

    def end(number: int, frame: Any) -> None:
        raise SystemExit(0)

    before: Callable[..., Any] | int | None = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def report_text(row: Mapping[str, Any]) -> str:
    """Return the report as text."""
    damage = ", ".join(f"{damaged['from']}..{damaged['until']} ({damaged['reason']})" for damaged in row["damage"])
    tables = ", ".join(
        f"{table['table']} {table['records']} rows and {table['dead_letters']} dead letters" for table in row["tables"]
    )
    return (
        f"{row['records']} records in {row['files']} files of {row['bytes']} bytes, "
        f"from {row['from']} until {row['until']}, in {row['seconds']:.1f} s; "
        + (f"tables: {tables}" if tables else f"table version {row['table_version']}")
        + (f"; left out as damaged: {damage}" if damage else "")
    )


def follow_text(row: Mapping[str, Any]) -> str:
    """Return one transaction as text: what it added, its rate, and the remaining lag."""
    log_bytes = row["until"] - row["from"]
    rate = log_bytes / row["seconds"] / 1e6 if row["seconds"] else 0.0
    return (
        f"{report_text(row)}; {rate:.1f} MB/s of the log, {row['lag_messages']} messages of {row['lag_bytes']} bytes "
        f"and {row['lag_seconds']:.1f} s behind"
    )
