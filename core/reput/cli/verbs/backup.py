"""`reput backup`: backs a store up, open or closed, into a directory or an object store."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from msgspec import to_builtins

from reput.cli.terminal.failure import ANSWER_IS_NO
from reput.cli.terminal.interrupts import Interrupted, Interrupts
from reput.cli.terminal.options import (
    ConfigOption,
    FormatOption,
    OutputFormat,
    SetOption,
    StoreArgument,
    refuse_address,
    settings_of,
    storage_options_in,
)
from reput.cli.terminal.output import Printer
from reput.cli.terminal.progress import progress_bar
from reput.cli.terminal.rows import time_text

__all__ = ["EXAMPLE", "BackupStorageOption", "backup"]

EXAMPLE = "reput send store orders --count 3 && reput backup store backups"
FOLLOW_INTERVAL_S = 1.0

BackupStorageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="NAME=VALUE",
        help="Setting of the object store, such as AWS_REGION=…; may be repeated. Put keys into the environment, "
        "which is read, too.",
    ),
]


def backup(
    store: StoreArgument,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="Directory for the backups of this store, or an address in an object store, such as "
            "s3://bucket/backups, for which the extra `backup` is needed. If it is missing, it is created.",
            show_default=False,
        ),
    ],
    keep: Annotated[
        str | None,
        typer.Option(
            "--keep", metavar="N|AGE", help="Keep only the last N backups, or those of an age like 12h, 7d or 4w."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Back up every second what is new, until interrupted.")
    ] = False,
    storage_options: BackupStorageOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> int:
    """Back up a store, beside the program that writes it, or without one: its log, configuration, offsets and epochs.

    The first backup copies the log, each later one what has grown since. Every record is verified on the way. A backup
    that is interrupted leaves nothing behind. Exit code 1: bytes of the log are damaged; the backup has them as they
    are, and says so.
    """
    from reput.backup.backup import backup_store
    from reput.backup.open_target import open_target
    from reput.backup.retention import parse_keep

    refuse_address(store)
    kept = None if keep is None else parse_keep(keep)
    settings = settings_of(store, config, assignments).settings
    place = open_target(target, storage_options_in(storage_options or ()))
    printer = Printer(output_format, backup_text)
    if not follow:
        with progress_bar(f"backup {store}") as update:
            report = backup_store(store, place, settings, keep=kept, on_progress=update)
        printer.row(to_builtins(report))
        return ANSWER_IS_NO if report.damage else 0

    from reput.backup.follow import follow_store

    damage = []
    pause = threading.Event()
    with Interrupts() as interrupts:

        def wait() -> bool:
            sys.stdout.flush()
            try:
                with interrupts.waiting():
                    pause.wait(FOLLOW_INTERVAL_S)
            except Interrupted:
                return False
            return True

        for report in follow_store(store, place, settings, wait, keep=kept):
            damage = report.damage
            printer.row(to_builtins(report))
    return ANSWER_IS_NO if damage else 0


def backup_text(row: Mapping[str, Any]) -> str:
    """Return the report on a backup as text: what it holds and what it cost, then what was found wrong."""
    until = f", stored until {time_text(row['store_timestamp'])}" if row["records"] else ""
    lines = [
        f"backup {row['backup']}: log {row['log_begin']} to {row['log_end']}, {row['records']} records{until}; "
        f"{row['files']} files; copied {row['copied']} bytes in {row['seconds']:.2f} s ({row['mb_per_s']:.1f} MB/s)"
    ]
    lines += damage_lines(row)
    lines += [f"note: {note}" for note in row["notes"]]
    if row["removed"]:
        lines.append(f"removed: {row['removed']} older backups")
    return "\n".join(lines)


def damage_lines(row: Mapping[str, Any]) -> list[str]:
    """Return a line for each damaged range."""
    return [f"DAMAGE: from {found['begin']} until {found['end']}: {found['reason']}" for found in row["damage"]]
