"""`reput group`: the consumer groups of a store: list, create, update, describe, reset, delete, clean, and their dead
letters: dead-letters, redrive."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from reput.cli.target.remote import connected, is_address
from reput.cli.target.stopped_store import administrate, look
from reput.cli.terminal.failure import ANSWER_IS_NO
from reput.cli.terminal.interrupts import Interrupts
from reput.cli.terminal.options import (
    BodyOption,
    ConfigOption,
    CountOption,
    FormatOption,
    OutputFormat,
    SetOption,
    TargetArgument,
    TopicArgument,
    epilog,
    settings_of,
    whole_number,
)
from reput.cli.terminal.output import BODY_PREVIEW_SIZE, Printer, print_table, write_line
from reput.cli.terminal.rows import Body, record_row, record_text
from reput.cli.verbs.consume import parse_beginning
from reput.cli.verbs.send import parse_rate

if TYPE_CHECKING:
    from reput.consume.administration.dead_letters import GroupDeadLetters, RedriveTarget
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
    "dead-letters": f"{MADE} && reput group dead-letters store billing",
    "redrive": f"{MADE} && reput group redrive store billing --dry-run",
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


class RedriveTo(enum.StrEnum):
    """Where a dead letter is put back to."""

    TOPIC = "topic"
    GROUP = "group"


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


FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="earliest|latest|TIME",
        help="Begin with letters that died at this time; default: where the last redrive ended.",
    ),
]
OriginOption = Annotated[
    str | None, typer.Option("--topic", metavar="T", help="Only letters that were sent to this topic.")
]
TagsOption = Annotated[str | None, typer.Option("--tags", metavar="EXPR", help="Only these tags, like 'a || b'.")]
SqlOption = Annotated[
    str | None, typer.Option("--sql", metavar="EXPR", help="SQL92 filter on properties, like 'a > 5'.")
]


def dead_letters(
    store: TargetArgument,
    group: GroupArgument,
    start: FromOption = None,
    topic: OriginOption = None,
    tags: TagsOption = None,
    sql: SqlOption = None,
    count: CountOption = None,
    body: BodyOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> None:
    """Show the messages that a group could not handle, with the topic that each was sent to."""
    from reput.consume.administration.dead_letters import origin_topic

    printer = Printer(output_format, lambda row: dead_letter_text(row, None if body else BODY_PREVIEW_SIZE))
    kind = (body or Body.BASE64) if printer.is_json else body or Body.TEXT
    begin = None if start is None else parse_beginning(start)
    with letters_to_read(store, group, config, assignments) as letters:
        for record in islice(letters.read(begin, topic=topic, tags=tags, sql=sql), count):
            printer.row({"origin_topic": origin_topic(record)} | record_row(record, kind))


def dead_letter_text(row: Mapping[str, Any], body_size_max: int | None) -> str:
    """Return one dead letter as text: where it was sent to and how often it was delivered, then the record."""
    return f"{row['origin_topic'] or '-'}  retries={row['reconsume_times']}  {record_text(row, body_size_max).lstrip()}"


def redrive(
    store: TargetArgument,
    group: GroupArgument,
    to: Annotated[
        RedriveTo,
        typer.Option(
            "--to",
            help="topic: where they were sent to, so that all its groups get them; group: only this group gets them.",
        ),
    ] = RedriveTo.TOPIC,
    start: FromOption = None,
    topic: OriginOption = None,
    tags: TagsOption = None,
    sql: SqlOption = None,
    count: CountOption = None,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="R", parser=parse_rate, help="Maximum messages per second.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be put back.")] = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> int:
    """Put the dead letters of a group back, oldest first. They stay among the dead letters as well.

    Without a filter and without --from, the next redrive continues where this one ended; otherwise it puts the same
    letters back again. If a program has the store open, name its broker's HOST:PORT, or let `reput serve` be that
    program. Exit code 1: a letter could not be put back.
    """
    begin = None if start is None else parse_beginning(start)
    wanted: RedriveTarget = "group" if to is RedriveTo.GROUP else "topic"
    opened = letters_to_read if dry_run else letters_to_redrive
    counts: Counter[str] = Counter()
    printer = Printer(output_format, redriven_text)
    with Interrupts() as interrupts, opened(store, group, config, assignments) as letters:
        rows = letters.redrive(
            begin, to=wanted, topic=topic, tags=tags, sql=sql, count=count, rate=rate, dry_run=dry_run
        )
        with closing(rows):
            while interrupts.received is None and (row := next(rows, None)) is not None:
                counts[row.outcome] += 1
                printer.row(msgspec.to_builtins(row))
    if not printer.is_json:
        write_line(", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "no dead letters")
    if interrupts.received is not None:
        return interrupts.exit_code
    return ANSWER_IS_NO if counts["left"] else 0


def redriven_text(row: Mapping[str, Any]) -> str:
    """Return what became of one dead letter as a line."""
    words = [f"{row['queue_id']}@{row['queue_offset']}", row["outcome"], row["topic"] or "-"]
    return "  ".join([*words, *(row[name] for name in ("message_id", "reason") if row[name])])


@contextmanager
def letters_to_read(
    store: Path, group: str, config: Path | None, assignments: list[str] | None
) -> Iterator[GroupDeadLetters]:
    """Yield the dead letters of a store, which another program may have open, or of brokers; nothing changes."""
    with look(store, config, assignments) as administration:
        yield administration.dead_letters(group)


@contextmanager
def letters_to_redrive(
    store: Path, group: str, config: Path | None, assignments: list[str] | None
) -> Iterator[GroupDeadLetters]:
    """Yield the dead letters of a store, opened for it, or of brokers; that of the store, if one serves it."""
    from reput.embedded.store import Store
    from reput.embedded.store_engine import StoreEngine
    from reput.store.state.broker_place import read_broker_place
    from reput.store.state.identity import require_store
    from reput.store.state.store_lock import StoreLock

    if not is_address(store):
        require_store(store)
        is_served = StoreLock.look(store).held is not False and read_broker_place(store) is not None
        if not is_served:
            settings = settings_of(store, config, assignments).settings
            with Store(StoreEngine(store, settings, "processes")) as opened:
                yield opened.administration.dead_letters(group)
            return
    with connected(store, config, assignments) as client:
        yield client.administration.dead_letters(group)


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
        ("dead-letters", dead_letters),
        ("redrive", redrive),
    ):
        application.command(name, epilog=epilog(EXAMPLES[name]))(verb)
