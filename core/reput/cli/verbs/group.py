"""`reput group`: the consumer groups of a store: list, create, update, describe, reset, delete, clean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from reput.cli.target.stopped_store import administrate, look
from reput.cli.terminal.failure import ANSWER_IS_NO
from reput.cli.terminal.options import (
    ConfigOption,
    FormatOption,
    OutputFormat,
    SetOption,
    TargetArgument,
    TopicArgument,
    epilog,
    whole_number,
)
from reput.cli.terminal.output import print_table, write_line
from reput.cli.verbs.consume import parse_beginning

if TYPE_CHECKING:
    from reput.consume.registry.statistics import GroupRow, StoreStatistics

__all__ = ["register"]

MADE = "reput send store orders --count 3 && reput consume store orders --group billing --count 1"
EXAMPLES = {
    "list": f"{MADE} && reput group list store",
    "describe": f"{MADE} && reput group describe store billing",
    "create": f"{MADE} && reput group create store audit --retry-max-times 3",
    "update": f"{MADE} && reput group create store audit && reput group update store audit --no-consume",
    "reset": f"{MADE} && reput group reset store billing orders --to earliest",
    "delete": f"{MADE} && reput group delete store billing",
    "clean": f"{MADE} && reput group clean store",
}
LIST_COLUMNS = (
    "group",
    "consume_enable",
    "retry_queue_nums",
    "retry_max_times",
    "topics",
    "lag",
    "get_nums",
    "send_back_nums",
    "dead_letter_nums",
    "latency_max_ms",
)
PROGRESS_COLUMNS = ("group", "topic", "queue_id", "broker_offset", "consumer_offset", "lag", "last_timestamp")

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="Name of a consumer group.", show_default=False)]
ConsumeOption = Annotated[
    bool | None, typer.Option("--consume/--no-consume", help="Whether the group receives messages.", show_default=False)
]
BroadcastOption = Annotated[
    bool | None,
    typer.Option(
        "--broadcast/--no-broadcast", help="Whether the group may consume by broadcasting.", show_default=False
    ),
]
RetryQueuesOption = Annotated[
    int | None,
    typer.Option("--retry-queues", metavar="N", parser=whole_number(), help="Queues of its retry topic; 0: none."),
]
RetryMaxOption = Annotated[
    int | None,
    typer.Option(
        "--retry-max-times", metavar="N", parser=whole_number(), help="Retries before a message is a dead letter."
    ),
]


def list_groups(
    store: TargetArgument,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> int:
    """Show the groups that are described in subscriptionGroup.json or have offsets. Exit code 1: there are none.

    For an open store, also show what the program has delivered to them since the opening.
    """
    from reput.embedded.store_status import owners_statistics

    statistics = owners_statistics(store)
    counted = rows_by_group(statistics)
    rows: list[dict[str, Any]] = []
    with look(store, config, assignments) as administration:
        progress_of = administration.progress_of_groups()
        # A new group is written with a delay; the program that has the store open already knows it.
        begun = {row.group for row in statistics.groups} if statistics is not None else set()
        for group in sorted(progress_of.keys() | begun):
            progress = progress_of.get(group, [])
            described = administration.group_config(group)
            rows.append(
                {
                    "group": group,
                    "consume_enable": described.consume_enable if described else None,
                    "retry_queue_nums": described.retry_queue_nums if described else None,
                    "retry_max_times": described.retry_max_times if described else None,
                    "topics": sorted({row.topic for row in progress}),
                    "lag": sum(row.lag for row in progress) if progress else None,
                    **group_counts(counted(group)),
                }
            )
    print_table(rows, LIST_COLUMNS, output_format)
    return 0 if rows else ANSWER_IS_NO


def rows_by_group(statistics: StoreStatistics | None) -> Callable[[str], Sequence[GroupRow] | None]:
    """Return a function from group to its counts per topic; None: unknown, or left out of a long answer."""
    found: dict[str, list[GroupRow]] = {}
    for row in statistics.groups if statistics is not None else ():
        found.setdefault(row.group, []).append(row)
    others = None if statistics is None or statistics.groups_left_out else ()
    return lambda group: found.get(group, others)


def group_counts(rows: Sequence[GroupRow] | None) -> dict[str, int | None]:
    """Return the delivered and sent-back messages of a group, summed over the topics of *rows*; all None if
    unknown."""
    names = ("get_nums", "get_size", "send_back_nums", "dead_letter_nums")
    if rows is None:
        return dict.fromkeys((*names, "latency_max_ms"))
    counts: dict[str, int | None] = {name: sum(getattr(row, name) for row in rows) for name in names}
    latencies = [row.latency_max_ms for row in rows if row.latency_max_ms is not None]
    return counts | {"latency_max_ms": max(latencies, default=None)}


def describe_group(
    store: TargetArgument,
    group: GroupArgument,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> None:
    """Show a group's progress in each queue, and how many messages are left."""
    with look(store, config, assignments) as administration:
        rows = administration.group_progress(group)
    print_table(msgspec.to_builtins(rows), PROGRESS_COLUMNS, output_format)


def create_group(
    store: TargetArgument,
    group: GroupArgument,
    consume: ConsumeOption = None,
    broadcast: BroadcastOption = None,
    retry_queues: RetryQueuesOption = None,
    retry_max_times: RetryMaxOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Create a group in subscriptionGroup.json, or change an existing one."""
    change_group(store, group, consume, broadcast, retry_queues, retry_max_times, config, assignments, must_exist=False)
    write_line(f"created: {group}")


def update_group(
    store: TargetArgument,
    group: GroupArgument,
    consume: ConsumeOption = None,
    broadcast: BroadcastOption = None,
    retry_queues: RetryQueuesOption = None,
    retry_max_times: RetryMaxOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Change a group's permissions and retries."""
    change_group(store, group, consume, broadcast, retry_queues, retry_max_times, config, assignments, must_exist=True)
    write_line(f"updated: {group}")


def change_group(
    store: TargetArgument,
    group: str,
    consume: bool | None,
    broadcast: bool | None,
    retry_queues: int | None,
    retry_max_times: int | None,
    config: ConfigOption,
    assignments: SetOption,
    *,
    must_exist: bool,
) -> None:
    """Apply the given options to a group; the others stay unchanged."""
    from reput.store.config.subscription_group_manager import SubscriptionGroupConfig

    said = {
        "consume_enable": consume,
        "consume_broadcast_enable": broadcast,
        "retry_queue_nums": retry_queues,
        "retry_max_times": retry_max_times,
    }
    with administrate(store, config, assignments) as administration:
        if must_exist:
            administration.require_group(group)
        found = administration.group_config(group) or SubscriptionGroupConfig(group_name=group)
        administration.update_group(
            msgspec.structs.replace(found, **{name: value for name, value in said.items() if value is not None})
        )


def reset_group(
    store: TargetArgument,
    group: GroupArgument,
    topic: TopicArgument,
    to: Annotated[str, typer.Option("--to", metavar="earliest|latest|TIME", help="Where the group continues.")],
    queue_id: Annotated[
        int | None, typer.Option("--queue-id", metavar="Q", parser=whole_number(), help="Only this queue.")
    ] = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> None:
    """Move a group to another position of a topic: its beginning, its end, or a time."""
    beginning = parse_beginning(to, "--to")
    with administrate(store, config, assignments) as administration:
        rows = administration.reset_offsets(group, topic, beginning, queue_id=queue_id)
    print_table(msgspec.to_builtins(rows), PROGRESS_COLUMNS, output_format)


def delete_group(
    store: TargetArgument,
    group: GroupArgument,
    keep_offsets: Annotated[bool, typer.Option("--keep-offsets", help="Keep its committed offsets.")] = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Delete a group and its committed offsets."""
    with administrate(store, config, assignments) as administration:
        administration.delete_group(group, clean_offsets=not keep_offsets)
    write_line(f"deleted: {group}")


def clean_groups(
    store: TargetArgument,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> None:
    """Delete the offsets of dead groups: all messages that they would read next are gone from the log."""
    with administrate(store, config, assignments) as administration:
        removed = administration.clean_offsets()
    print_table([{"group": group, "topic": topic} for group, topic in removed], ("group", "topic"), output_format)


def register(application: typer.Typer) -> None:
    """Add the verbs to *application*."""
    for name, verb in (
        ("list", list_groups),
        ("describe", describe_group),
        ("create", create_group),
        ("update", update_group),
        ("reset", reset_group),
        ("delete", delete_group),
        ("clean", clean_groups),
    ):
        application.command(name, epilog=epilog(EXAMPLES[name]))(verb)
