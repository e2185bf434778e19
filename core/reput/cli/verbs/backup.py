"""`reput backup` and `reput restore`: a store into a directory or an object store, and back."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    given_path,
    parse_time,
    refuse_address,
    settings_of,
    storage_options_in,
    whole_number,
)
from reput.cli.terminal.output import Printer
from reput.cli.terminal.progress import progress_bar
from reput.cli.terminal.rows import time_text

if TYPE_CHECKING:
    from reput.metrics.backup_collector import BackupCollector

__all__ = ["EXAMPLE", "EXAMPLES", "backup", "restore"]

EXAMPLE = "reput send store orders --count 3 && reput backup store backups"
EXAMPLES = {
    "restore": "reput send store orders --count 3 && reput backup store backups && reput restore backups restored"
}
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
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", metavar="H:P", help="With --follow: where Prometheus reads metrics, at /metrics."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let other machines read the metrics, without an account.")
    ] = False,
    storage_options: BackupStorageOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> int:
    """Back up a store, beside the program that writes it, or without one: its log, configuration, offsets and epochs.

    The first backup copies the log; each later one copies what is new. Every record is verified on the way. A backup
    that is interrupted leaves nothing behind. Exit code 1: bytes of the log are damaged; the backup has them as they
    are, and says so.
    """
    from reput.backup.backup import backup_store
    from reput.backup.open_target import open_target
    from reput.backup.retention import parse_keep

    refuse_address(store)
    if metrics is not None and not follow:
        raise typer.BadParameter(f"metrics need a backup that goes on, --follow: --metrics={metrics}")
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
    from reput.backup.stored import newest_manifest

    damage = []
    pause = threading.Event()
    collector = None
    if metrics is not None:
        newest = newest_manifest(place)
        collector = begin_metrics(metrics, insecure, None if newest is None else newest.timestamp)
    with Interrupts() as interrupts:

        def wait() -> bool:
            sys.stdout.flush()
            if collector is not None:
                collector.end_look()
            try:
                with interrupts.waiting():
                    pause.wait(FOLLOW_INTERVAL_S)
            except Interrupted:
                return False
            if collector is not None:
                collector.begin_look()
            return True

        for report in follow_store(store, place, settings, wait, keep=kept):
            damage = report.damage
            if collector is not None:
                collector.made(report.backup, report.log_end, report.copied, len(damage))
            printer.row(to_builtins(report))
    return ANSWER_IS_NO if damage else 0


def begin_metrics(address: str, insecure: bool, before_ms: int | None) -> BackupCollector:
    """Answer scrapes at an address until the process ends, and say where on stderr; return what the answers are of.

    Args:
        before_ms: when the target's newest backup was made, ms; None: there is none.
    """
    from reput.cli.verbs.serve import address_text, metrics_listener

    # The listener says which extra is missing.
    listener = metrics_listener(address, insecure)
    where = address_text(*listener.getsockname()[:2])

    from reput.metrics.backup_collector import BackupCollector
    from reput.metrics.metrics_listener import MetricsListener

    collector = BackupCollector(before_ms)
    MetricsListener(listener, collector)
    print(f"reput: metrics=http://{where}/metrics", file=sys.stderr, flush=True)
    return collector


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
            metavar="STORE", parser=given_path, help="Store directory, empty or missing.", show_default=False
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
    list_only: Annotated[bool, typer.Option("--list", help="Only list the backups.")] = False,
    storage_options: BackupStorageOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> int:
    """Restore a store from its backups, up to the newest one, a time or an offset.

    Every record is verified, the views are built, and the report says what is lost. The store keeps its id and begins a
    new epoch: never let a program write the old one as well. Exit code 1: the backup contains damage of the store.
    """
    from reput.backup.open_target import open_target
    from reput.backup.restore import RestoreRequest, list_backups, restore_store

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
            RestoreRequest(place.address, number, at, offset),
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
    left_out = []
    if row["records_left_out"]:
        left_out.append(
            f"{row['records_left_out']} records that backup {row['backup']} has behind offset {row['log_end']}"
        )
    if row["later_from"] is not None:
        left_out.append(f"what later backups, up to {row['newest_backup']}, have from offset {row['later_from']} on")
    left_out.append(f"whatever was put after the newest backup, made {time_text(row['newest_timestamp'])}")
    return f"lost: {', '.join(left_out[:-1])}{', and ' if left_out[1:] else ''}{left_out[-1]}"
