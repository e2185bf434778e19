"""`reput topic`: the topics of a store: list, create, update, describe, delete."""

from __future__ import annotations

from collections.abc import Mapping
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
    settings_of,
    whole_number,
)
from reput.cli.terminal.output import print_table, write_line

if TYPE_CHECKING:
    from reput.consume.registry.statistics import TopicRow
    from reput.store.config.topic_config_manager import TopicConfig

__all__ = ["register"]

MADE = "reput send store orders --count 3"
EXAMPLES = {
    "list": f"{MADE} && reput topic list store",
    "describe": f"{MADE} && reput topic describe store orders",
    "create": f"{MADE} && reput topic create store invoices --queues 4",
    "update": f"{MADE} && reput topic update store orders --perm 4",
    "delete": f"{MADE} && reput topic create store drafts && reput topic delete store drafts",
}
LIST_COLUMNS = ("topic", "read_queue_nums", "write_queue_nums", "perm", "order", "put_nums", "put_size")
STATS_COLUMNS = ("topic", "queue_id", "min_offset", "max_offset", "last_update_timestamp")
DEFAULT_QUEUES = 8

QueuesOption = Annotated[
    int | None,
    typer.Option("--queues", metavar="N", parser=whole_number(1), help="Number of queues, for reading and writing."),
]
ReadQueuesOption = Annotated[
    int | None, typer.Option("--read-queues", metavar="N", parser=whole_number(1), help="Number of queues for reading.")
]
WriteQueuesOption = Annotated[
    int | None,
    typer.Option("--write-queues", metavar="N", parser=whole_number(1), help="Number of queues for writing."),
]
PermOption = Annotated[
    int | None, typer.Option("--perm", metavar="SUM", parser=whole_number(), help="2 write, 4 read, 6 both, 0 none.")
]


def list_topics(
    store: TargetArgument,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> int:
    """Show the topics that are described in topics.json or have messages. Exit code 1: there are none.

    For an open store, also show what was put since the opening.
    """
    from reput.embedded.store_status import owners_statistics

    with look(store, config, assignments) as administration:
        found = administration.topic_configs()
    statistics = owners_statistics(store)
    counts = None if statistics is None else {row.topic: row for row in statistics.topics}
    rows = [topic_row(topic, counts) for topic in found]
    print_table(rows, LIST_COLUMNS, output_format)
    return 0 if rows else ANSWER_IS_NO


def describe_topic(
    store: TargetArgument,
    topic: TopicArgument,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> None:
    """Show each queue of a topic: its first message, the end offset, and the time of its last message."""
    with look(store, config, assignments) as administration:
        rows = administration.topic_stats(topic)
    print_table(msgspec.to_builtins(rows), STATS_COLUMNS, output_format)


def create_topic(
    store: TargetArgument,
    topic: TopicArgument,
    queues: QueuesOption = None,
    read_queues: ReadQueuesOption = None,
    write_queues: WriteQueuesOption = None,
    perm: PermOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Create a topic in topics.json, by default with 8 queues, or change an existing one."""
    change_topic(store, topic, queues, read_queues, write_queues, perm, config, assignments, must_exist=False)
    write_line(f"created: {topic}")


def update_topic(
    store: TargetArgument,
    topic: TopicArgument,
    queues: QueuesOption = None,
    read_queues: ReadQueuesOption = None,
    write_queues: WriteQueuesOption = None,
    perm: PermOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Change the queues or the permission of a topic. Reduce the write queues first, and the read queues later."""
    change_topic(store, topic, queues, read_queues, write_queues, perm, config, assignments, must_exist=True)
    write_line(f"updated: {topic}")


def change_topic(
    store: TargetArgument,
    topic: str,
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    perm: int | None,
    config: ConfigOption,
    assignments: SetOption,
    *,
    must_exist: bool,
) -> None:
    """Apply the given options to a topic; the others stay unchanged."""
    from reput.errors import RequestRefused
    from reput.remoting.response_code import ResponseCode
    from reput.store.config.topic_config_manager import TopicConfig

    with administrate(store, config, assignments) as administration:
        found = administration.topic_config(topic)
        if found is None and must_exist:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic does not exist: topic={topic!r}")
        found = found or TopicConfig(topic_name=topic, read_queue_nums=DEFAULT_QUEUES, write_queue_nums=DEFAULT_QUEUES)
        read_queues, write_queues = read_queues or queues, write_queues or queues
        administration.update_topic(
            msgspec.structs.replace(
                found,
                read_queue_nums=found.read_queue_nums if read_queues is None else read_queues,
                write_queue_nums=found.write_queue_nums if write_queues is None else write_queues,
                perm=found.perm if perm is None else perm,
            )
        )


def delete_topic(
    store: TargetArgument, topic: TopicArgument, config: ConfigOption = None, assignments: SetOption = None
) -> None:
    """Delete a topic: its queues, its stored data, and the committed offsets of all groups in it.

    Its records stay in the log until retention removes them; no rebuild restores the topic.
    """
    from reput.consume.registry.topics import is_system_topic

    with administrate(store, config, assignments) as administration:
        has_messages = not is_system_topic(topic) and administration.has_messages(topic)
        if not has_messages:
            administration.delete_topic(topic)
    if has_messages:
        from reput.embedded.store_engine import StoreEngine

        # The dispatcher that builds its queues deletes them.
        with StoreEngine(store, settings_of(store, config, assignments).settings, "processes") as opened:
            opened.delete_topic(topic)
    write_line(f"deleted: {topic}")


def topic_row(topic: TopicConfig, counts: Mapping[str, TopicRow] | None) -> dict[str, Any]:
    """Return the row for one topic; *counts*: puts per topic that has any; None: unknown."""
    put = None if counts is None else counts.get(topic.topic_name)
    nothing = None if counts is None else 0
    return {
        "topic": topic.topic_name,
        "read_queue_nums": topic.read_queue_nums,
        "write_queue_nums": topic.write_queue_nums,
        "perm": topic.perm,
        "order": topic.order,
        "topic_filter_type": topic.topic_filter_type,
        "topic_sys_flag": topic.topic_sys_flag,
        "attributes": topic.attributes or {},
        "put_nums": nothing if put is None else put.put_nums,
        "put_size": nothing if put is None else put.put_size,
    }


def register(application: typer.Typer) -> None:
    """Add the verbs to *application*."""
    for name, verb in (
        ("list", list_topics),
        ("describe", describe_topic),
        ("create", create_topic),
        ("update", update_topic),
        ("delete", delete_topic),
    ):
        application.command(name, epilog=epilog(EXAMPLES[name]))(verb)
