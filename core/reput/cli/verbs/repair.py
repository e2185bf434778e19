"""`reput repair`: the decisions about damage that only an operator can make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from reput.cli.terminal.options import (
    ConfigOption,
    FormatOption,
    OutputFormat,
    SetOption,
    StoreArgument,
    settings_of,
    whole_number,
)
from reput.cli.terminal.output import Printer

if TYPE_CHECKING:
    from reput.store.recovery.repair import AcceptPlan, CutPlan

__all__ = ["EXAMPLE", "repair"]

EXAMPLE = "reput send store orders --count 3 && reput repair store --cut-at 0 --dry-run"
RANGE_SEPARATOR = ".."
# RocketMQ cuts its queues by itself, but never its index: it skips records below the index's end.
FOR_ROCKETMQ = (
    "  reput truncates the views when it opens the store. Let it do so before RocketMQ opens the store: "
    "`reput rebuild STORE`. Otherwise RocketMQ finds no new message by key until the log has its old length again"
)


def repair(
    store: StoreArgument,
    cut_at: Annotated[
        int | None,
        typer.Option(
            "--cut-at",
            metavar="O",
            parser=whole_number(),
            help="End the log at this commit-log offset; everything after it is removed.",
        ),
    ] = None,
    accepted: Annotated[
        str | None,
        typer.Option("--accept", metavar="FROM..UNTIL", help="Give up this damaged range; the log continues after it."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be lost.")] = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> None:
    """Cut a damaged log, or accept its damage, so that the store can be written again. `reput check` shows the offsets.

    The report shows what is lost. All bytes that are cut are kept under reput/cut/ in the store.
    """
    if (cut_at is None) == (accepted is None):
        raise typer.BadParameter(f"give exactly one of the two: --cut-at={cut_at} --accept={accepted}")
    from reput.store.recovery.repair import accept, cut, plan_accept, plan_cut

    demand_crc = settings_of(store, config, assignments).settings.force_verify_prop_crc
    if cut_at is not None:
        row = cut_row((plan_cut if dry_run else cut)(store, cut_at, demand_crc=demand_crc))
    else:
        begin, end = parse_range(accepted or "")
        row = accept_row((plan_accept if dry_run else accept)(store, begin, end, demand_crc=demand_crc))
    text = cut_text if cut_at is not None else accept_text
    Printer(output_format, text).row({**row, "done": not dry_run})


def parse_range(text: str) -> tuple[int, int]:
    """Return both ends of ``FROM..UNTIL``.

    Raises:
        typer.BadParameter: *text* is not such a range.
    """
    begin, separator, end = text.partition(RANGE_SEPARATOR)
    if not separator or not all(part.isascii() and part.isdigit() for part in (begin, end)):
        raise typer.BadParameter(f"--accept takes FROM..UNTIL, two commit-log offsets: --accept={text}")
    return int(begin), int(end)


def cut_row(plan: CutPlan) -> dict[str, Any]:
    """Return the report of a cut, with the usual names of offsets."""
    row: dict[str, Any] = msgspec.to_builtins(plan, enc_hook=str)
    row["damage"] = [{"from": gap.begin, "until": gap.end, "reason": gap.reason} for gap in plan.damage]
    return row


def accept_row(plan: AcceptPlan) -> dict[str, Any]:
    """Return the report of an acceptance."""
    return {"from": plan.begin, "until": plan.end, "reason": plan.reason, "records_behind": plan.records_behind}


def cut_text(row: Mapping[str, Any]) -> str:
    """Return the report of a cut as text."""
    lines = [
        f"{'cut' if row['done'] else 'would cut'} at {row['cut_at']}: {row['until'] - row['cut_at']} bytes, "
        f"{row['records']} readable records"
    ]
    for queue in row["queues"]:
        lines.append(
            f"  {queue['topic']}@{queue['queue_id']}: {queue['records']} records, "
            f"queue offsets {queue['queue_offset']} to {queue['queue_offset_end'] - 1}"
        )
    lines += [f"  kept in {path}" for path in row["kept"]]
    if row["done"]:
        lines.append(FOR_ROCKETMQ)
    return "\n".join(lines)


def accept_text(row: Mapping[str, Any]) -> str:
    """Return the report of an acceptance as text."""
    return (
        f"{'accepted' if row['done'] else 'would accept'} {row['from']}..{row['until']}: {row['reason']}; "
        f"{row['records_behind']} records after it stay readable"
    )
