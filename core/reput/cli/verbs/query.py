"""`reput query`: messages by key or by tags, through the index."""

from __future__ import annotations

from typing import Annotated

import typer

from reput.cli.target.remote import connected, is_address
from reput.cli.terminal.failure import ANSWER_IS_NO
from reput.cli.terminal.options import (
    TIMESTAMP_MAX,
    BodyOption,
    ConfigOption,
    CountOption,
    FormatOption,
    OutputFormat,
    SetOption,
    TargetArgument,
    parse_time,
    settings_of,
)
from reput.cli.terminal.output import RecordPrinter

__all__ = ["EXAMPLE", "query"]

COUNT_DEFAULT = 32
EXAMPLE = "reput send store orders --keys order-17 --count 1 && reput query store orders order-17"


def query(
    store: TargetArgument,
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="Name of a topic; not needed for a message id.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Argument(metavar="[KEY]", help="A key of the message, its unique id, or its offset message id."),
    ] = None,
    tags: Annotated[
        str | None,
        typer.Option("--tags", metavar="TAGS", help="Search by tags instead of a key, if the index has them."),
    ] = None,
    begin: Annotated[
        int | None, typer.Option("--begin", metavar="T", parser=parse_time, help="Stored at this time or later.")
    ] = None,
    end: Annotated[
        int | None, typer.Option("--end", metavar="T", parser=parse_time, help="Stored at this time or before.")
    ] = None,
    count: CountOption = None,
    body: BodyOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> int:
    """Print the newest messages with a key, or with certain tags, in log order.

    An offset message id needs no topic: `reput query STORE MESSAGE_ID`. A time is milliseconds since 1970, or like
    2026-01-31T12:00:00Z. Exit code 1: there are no messages.
    """
    from reput.cli.target.behind import note_if_behind
    from reput.embedded.read_only_engine import ReadOnlyEngine
    from reput.embedded.read_only_store import ReadOnlyStore

    if key is None and tags is None:
        # An offset message id contains the message's position.
        topic, key = None, topic
    if (key is None) == (tags is None):
        raise typer.BadParameter(f"give either KEY or --tags: KEY={key} --tags={tags}")
    printer = RecordPrinter(output_format, body)
    last = TIMESTAMP_MAX if end is None else end
    if is_address(store):
        if key is None:
            raise typer.BadParameter(f"brokers find messages by key alone: --tags={tags}")
        with connected(store, config, assignments) as client:
            found = client.query(topic, key, count or COUNT_DEFAULT, begin=begin or 0, end=last)
            for record in found:
                printer.record(record)
        return 0 if found else ANSWER_IS_NO
    settings = settings_of(store, config, assignments).settings
    with ReadOnlyEngine(store, settings) as engine:
        found = ReadOnlyStore(engine).query(
            topic,
            key,
            count or settings.default_query_max_num,
            tags=tags,
            begin=begin or 0,
            end=last,
        )
        note_if_behind(engine, "index")
    for record in found:
        printer.record(record)
    return 0 if found else ANSWER_IS_NO
