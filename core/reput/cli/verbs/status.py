"""`reput status`: shows the store's writer and its dispatchers."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from msgspec import to_builtins

from reput.cli.target.remote import connected, is_address, print_brokers
from reput.cli.terminal.failure import ANSWER_IS_NO
from reput.cli.terminal.options import (
    ConfigOption,
    FormatOption,
    OutputFormat,
    SetOption,
    TargetArgument,
    settings_of,
)
from reput.cli.terminal.output import Printer, cell_text, fitted_table, table_text, wrapped
from reput.settings.values import value_text

__all__ = ["EXAMPLE", "status"]

EXAMPLE = "reput send store orders --count 3 && reput status store"
UNHEALTHY = frozenset({"READ_ONLY", "BACKOFF", "FATAL", "BROKEN", "UNKNOWN"})
WATCH_INTERVAL_S = 1.0
CLEAR_SCREEN = "\x1b[H\x1b[2J"

WRITER_COLUMNS = ("pid", "state", "appended", "durable", "commit_log_offset_min", "epoch", "reason")
DISPATCHER_COLUMNS = (
    "name",
    "pid",
    "state",
    "progress",
    "durable_cursor",
    "lag_bytes",
    "lag_messages",
    "lag_seconds",
    "restart_count",
    "gap_bytes",
    "heartbeat_age_ms",
    "rss_bytes",
    "rebuild_progress",
    "error",
)
DAMAGE_COLUMNS = ("from", "until", "accepted", "met", "reason")
GROUP_COLUMNS = (
    "group",
    "topic",
    "get_nums",
    "get_size",
    "send_back_nums",
    "dead_letter_nums",
    "latency_ms",
    "latency_average_ms",
    "latency_max_ms",
)


def status(
    store: TargetArgument,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat every second, until Ctrl-C.")] = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> int:
    """Show a store's writer, the end of its log, the lag of each view, and what was put and consumed.

    For a closed store, this shows what is on disk, with the state STOPPED, and the dispatchers that ran last, unless a
    configuration names others. If the program that has the store open cannot be asked, because it belongs to another
    user or is stopped, the state is UNKNOWN, with the reason. Exit code 1: the store refuses writes, a dispatcher is
    down or in an unknown state, or the log has known damage that no operator has accepted.
    """
    from reput.embedded.read_only_engine import ReadOnlyEngine
    from reput.process.owner.stopped_status import as_run_last

    if is_address(store):
        with connected(store, config, assignments) as client:
            return 0 if print_brokers(client, output_format, watch=watch) else ANSWER_IS_NO
    loaded = settings_of(store, config, assignments)
    printer = Printer(output_format, terminal_text)
    waiting = threading.Event()
    while True:
        with ReadOnlyEngine(store, as_run_last(store, loaded)) as opened:
            row = to_builtins(opened.status())
        if watch and not printer.is_json and sys.stdout.isatty():
            sys.stdout.write(CLEAR_SCREEN)
        printer.row(row)
        if not watch:
            return ANSWER_IS_NO if is_unhealthy(row) else 0
        sys.stdout.flush()
        waiting.wait(WATCH_INTERVAL_S)


def is_unhealthy(row: Mapping[str, Any]) -> bool:
    """Tell whether the store needs attention."""
    states = {row["writer"]["state"], *(dispatcher["state"] for dispatcher in row["dispatchers"])}
    # A process that was killed but does not end is waiting for a disk.
    stuck = any(dispatcher["state"] == "STOPPING" and dispatcher["error"] for dispatcher in row["dispatchers"])
    return bool(states & UNHEALTHY) or stuck or any(not part["accepted"] for part in row["damage"])


def terminal_text(row: Mapping[str, Any]) -> str:
    """Return `status_text` fitted to the terminal; for a file or pipe, in long lines."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    return status_text(row, width)


def status_text(row: Mapping[str, Any], width: int | None = None) -> str:
    """Return the group as text in lines of *width*: the store, a row for the writer, a row per dispatcher."""

    def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
        return table_text(rows, columns) if width is None else fitted_table(rows, columns, width)

    def lines(text: str) -> str:
        return text if width is None else "\n".join(wrapped(line, width) for line in text.splitlines())

    parts = [
        lines(
            f"store={row['store']} store_id={row['store_id'] or 'none'} version={row['version']} "
            f"kernel={row['kernel'] or 'none'}"
        ),
        lines("settings: " + " ".join(f"{name}={value_text(value)}" for name, value in row["settings"].items())),
        table([row["writer"]], WRITER_COLUMNS),
        lines(lease_text(row["lease"])),
        table(row["dispatchers"], DISPATCHER_COLUMNS),
        lines(counters_text(row["dispatchers"])),
        table(row["damage"], DAMAGE_COLUMNS),
    ]
    if row["statistics"] is None:
        parts += [lines(line_text(waiting_counts(row)))]
    else:
        parts += [lines(counts_text(row)), table(row["statistics"]["groups"], GROUP_COLUMNS)]
    return "\n\n".join(part for part in parts if part)


def lease_text(lease: Mapping[str, Any] | None) -> str:
    """Return one line with what a node of a lease is, "" without one."""
    return "" if lease is None else "lease: " + line_text({**lease, "in_sync": ",".join(lease["in_sync"])})


def counters_text(dispatchers: Sequence[Mapping[str, Any]]) -> str:
    """Return one line per dispatcher with counters, by the names that its plugin gave them."""
    return "\n".join(
        f"counters of {dispatcher['name']}: {line_text(dispatcher['counters'])}"
        for dispatcher in dispatchers
        if dispatcher["counters"]
    )


def counts_text(row: Mapping[str, Any]) -> str:
    """Return one line with the messages put since the store was opened, and the waiting ones."""
    put = row["statistics"]["put"]
    counts = {name: put[name] for name in ("put_nums", "put_size", "put_entire_time_max_ms")}
    counts |= {f"put_tps_{period}": tps for period, tps in put["put_tps"].items()}
    return line_text(counts | waiting_counts(row))


def waiting_counts(row: Mapping[str, Any]) -> dict[str, int | None]:
    """Return how many messages wait, summed over all delay levels; None: unknown."""
    waiting = row["waiting_delays"]
    return {
        "waiting_delays": None if waiting is None else sum(waiting.values()),
        "half_messages": row["half_messages"],
    }


def line_text(counts: Mapping[str, Any]) -> str:
    """Return *counts* on one line."""
    return " ".join(f"{name}={cell_text(value)}" for name, value in counts.items())
