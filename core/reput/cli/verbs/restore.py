"""`reput restore`: restores a store from its backups."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import to_builtins

from reput.cli.terminal.failure import ANSWER_IS_NO
from reput.cli.terminal.options import (
    ConfigOption,
    FormatOption,
    OutputFormat,
    SetOption,
    given_path,
    parse_time,
    storage_options_in,
    whole_number,
)
from reput.cli.terminal.output import Printer
from reput.cli.terminal.progress import progress_bar
from reput.cli.terminal.rows import time_text
from reput.cli.verbs.backup import BackupStorageOption, damage_lines

__all__ = ["EXAMPLE", "restore"]

EXAMPLE = "reput send store orders --count 3 && reput backup store backups && reput restore backups restored"


def restore(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="What `reput backup` was given: a directory or an address.", show_default=False
        ),
    ],
    store: Annotated[
        Path | None,
        typer.Argument(
            metavar="STORE", parser=given_path, help="Store directory, empty or not there yet.", show_default=False
        ),
    ] = None,
    at: Annotated[
        int | None,
        typer.Option(
            "--at",
            metavar="TIME",
            parser=parse_time,
            help="Restore what was stored until this time: ms since 1970, or like 2026-01-31T12:00:00Z.",
        ),
    ] = None,
    offset: Annotated[
        int | None,
        typer.Option("--offset", metavar="O", parser=whole_number(), help="End the log at this commit-log offset."),
    ] = None,
    number: Annotated[
        int | None,
        typer.Option(
            "--backup",
            metavar="N",
            parser=whole_number(1),
            help="Use this backup; default: the newest, or the first that has the time or offset.",
        ),
    ] = None,
    list_only: Annotated[bool, typer.Option("--list", help="Only show the backups that there are.")] = False,
    storage_options: BackupStorageOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> int:
    """Restore a store from its backups, up to the newest one, a time or an offset.

    Every record is verified, the views are built, and the report says what is lost. The store keeps its id and begins a
    new epoch: never let a program write the old one as well. Exit code 1: the backup has damage of the store in it.
    """
    from reput.backup.open_target import open_target
    from reput.backup.restore import RestoreWish, list_backups, restore_store

    if at is not None and offset is not None:
        raise typer.BadParameter(f"give only one of the two: --at={at} --offset={offset}")
    if (store is None) != list_only:
        raise typer.BadParameter(f"give either STORE or --list: STORE={store or ''} --list={list_only}")
    place = open_target(target, storage_options_in(storage_options or ()))
    if store is None:
        printer = Printer(output_format, listed_text)
        for manifest in list_backups(place):
            row = to_builtins(manifest)
            for name in ("pieces", "full_segments", "mark"):
                del row[name]
            printer.row(row | {"files": len(manifest.files)})
        return 0
    with progress_bar(f"restore {store}") as update:
        report = restore_store(
            place,
            store,
            RestoreWish(place.address, number, at, offset),
            config=config,
            assignments=assignments or (),
            on_progress=update,
        )
    Printer(output_format, restore_text).row(to_builtins(report))
    return ANSWER_IS_NO if report.damage else 0


def listed_text(row: Mapping[str, Any]) -> str:
    """Return one backup as a line."""
    damage = f", DAMAGE in {len(row['damage'])} ranges" if row["damage"] else ""
    until = f", stored until {time_text(row['store_timestamp'])}" if row["records"] else ""
    return (
        f"backup {row['number']}: made {time_text(row['timestamp'])}, log {row['log_begin']} to {row['log_end']}, "
        f"{row['records']} records{until}, epoch {row['history'][-1]['number']}{damage}"
    )


def restore_text(row: Mapping[str, Any]) -> str:
    """Return the report on a restore as text: what is there, and in one sentence what is lost."""
    until = f", stored until {time_text(row['store_timestamp'])}" if row["records"] else ""
    lines = [
        f"restored backup {row['backup']}: log {row['log_begin']} to {row['log_end']}, {row['records']} records"
        f"{until}, epoch {row['epoch']}",
        lost_text(row),
    ]
    if row["offsets_lowered"]:
        lines.append(f"offsets of groups set to the end of their queue: {row['offsets_lowered']}")
    lines.append(f"views built: {', '.join(row['views']) or 'none'}")
    lines += damage_lines(row)
    if row["damage"]:
        lines.append("The damage is that of the store; decide about it with `reput repair`, then `reput rebuild`.")
    return "\n".join(lines)


def lost_text(row: Mapping[str, Any]) -> str:
    """Return the sentence that says what is lost."""
    left_out = ""
    if row["records_left_out"]:
        left_out = (
            f"{row['records_left_out']} records that backup {row['backup']} has behind offset {row['log_end']}, and "
        )
    return f"lost: {left_out}whatever was put after the newest backup, made {time_text(row['newest_timestamp'])}"
