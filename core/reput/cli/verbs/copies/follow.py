"""`reput follow`: a live copy of a running master, RocketMQ's or reput's."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reput.cli.terminal.options import (
    ConfigOption,
    FormatOption,
    OutputFormat,
    SetOption,
    StoreArgument,
    refuse_address,
)
from reput.cli.terminal.output import Printer

if TYPE_CHECKING:
    from reput.replication.copy_preparation import PreparedCopy
    from reput.replication.following_engine import FollowingEngine

__all__ = ["EXAMPLES", "follow"]

EXAMPLES = {"follow": "timeout --preserve-status 3 reput follow 127.0.0.1:10912 copy || echo 'no master runs here'"}
MasterArgument = Annotated[
    str,
    typer.Argument(
        metavar="MASTER", help="HOST:PORT of the master's HA port; with --name-server, the name of its broker."
    ),
]
NameServerOption = Annotated[
    str | None, typer.Option("--name-server", metavar="H:P;H:P", help="Name servers that know the master's broker.")
]
BrokerOption = Annotated[
    str | None,
    typer.Option("--broker", metavar="H:P", help="Where the master answers requests. [one port below the HA port]"),
]
FromOption = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="earliest|latest|OFFSET",
        help="For a new store: the master's first record, its last segment, or the segment that holds this offset.",
    ),
]
DiscardOption = Annotated[
    bool,
    typer.Option(
        "--discard", help="Move records that the master lacks to reput/cut/ in the store, and follow from there."
    ),
]


def follow(
    master: MasterArgument,
    store: StoreArgument,
    name_server: NameServerOption = None,
    broker: BrokerOption = None,
    begin: FromOption = "earliest",
    discard: DiscardOption = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> int:
    """Copy a running master's log into STORE, byte for byte, and its views and configuration, until Ctrl-C or SIGTERM.

    Each record is checked, forced to disk and only then acknowledged. The copy is read like any store, while it grows;
    it takes no messages. A row is printed whenever the state of the connection changes. If the two
    logs diverge, the command ends: two histories are never joined.
    """
    from reput.access.credentials import credentials_of_environment
    from reput.cli.terminal.interrupts import Interrupts
    from reput.replication.copy_preparation import MasterAddress
    from reput.replication.following import open_copy, parse_beginning

    refuse_address(store)
    printer = Printer(output_format, text_of)
    with Interrupts() as interrupts:
        address = MasterAddress(master, name_server, broker, credentials_of_environment())
        prepared, engine = open_copy(
            store, address, parse_beginning(begin), discard=discard, config=config, assignments=assignments or ()
        )
        try:
            tell_discarded(printer, prepared, store)
            show_states(printer, engine, interrupts)
        finally:
            engine.close()
    if engine.follower.error is not None:
        raise engine.follower.error
    return 0


def tell_discarded(printer: Printer, prepared: PreparedCopy, store: Path) -> None:
    """Print what was cut off."""
    plan = prepared.discarded
    if plan is not None:
        row = {
            "state": "DISCARDED",
            "from": plan.cut_at,
            "until": plan.until,
            "records": plan.records,
            "kept": [str(path) for path in plan.kept],
            "store": str(store),
        }
        printer.row(row)


def show_states(printer: Printer, engine: FollowingEngine, interrupts: Any) -> None:
    """Print a row for each state, until a signal, or until the following ends."""
    from msgspec import to_builtins

    from reput.cli.terminal.interrupts import Interrupted
    from reput.replication.follower import FollowState

    follower = engine.follower
    seen = FollowState.CONNECTING
    try:
        with interrupts.waiting():
            while seen is not FollowState.STOPPED:
                state = follower.wait_for_change(seen, 1.0)
                if state is not seen and state is not FollowState.CONNECTING:
                    printer.row(to_builtins(follower.status()))
                    sys.stdout.flush()
                seen = state
    except Interrupted:
        return


def text_of(row: Mapping[str, Any]) -> str:
    """Return a row as text."""
    if row["state"] == "DISCARDED":
        kept = ", ".join(row["kept"])
        return f"cut off from {row['from']} until {row['until']}: {row['records']} records, kept in {kept}"
    behind = "unknown" if row["master_end"] is None else max(row["master_end"] - row["end"], 0)
    text = f"{row['state']} master={row['master']} end={row['end']} behind={behind}"
    return text if row["reason"] is None else f"{text} reason={row['reason']}"
