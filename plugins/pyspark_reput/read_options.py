"""ReadOptions: the options of ``spark.read.format("reput")`` and ``readStream``, named after Spark's Kafka source.

Names are case-insensitive. An unknown name is refused with the nearest known one, because ignoring a misspelled option
would read the wrong rows.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, get_args
from urllib.parse import unquote, urlsplit

import msgspec

from reput.errors import ConfigError
from reput.table import QueueRange, RowFilter, RowFormat, TableOptions

__all__ = ["LATEST", "OPTION_NAMES", "ReadOptions", "parse_options"]

EARLIEST, LATEST = -2, -1
SchemaMode = Literal["rocketmq", "kafka", "ranges", "damage"]
Queue = tuple[str, int]
TIME_UNITS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
SIZE_UNITS = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}

OPTION_NAMES = (
    "path",
    "columns",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxBytesPerTrigger",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "splitBytes",
    "failOnDataLoss",
    "includeHeaders",
    "userTopicsOnly",
    "decompress",
    "propertiesFormat",
    "schemaMode",
    "timestampColumn",
    "brokerName",
    "reads",
    "storeId",
    "verifyCrc",
    "onCorruption",
    "batchRows",
    "batchBytes",
    "pushdown",
)


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one read or stream.

    Attributes:
        columns: names of the columns to read, in this order; None: all, or those of a schema.
        starting_offset, ending_offset: commit-log offsets, or `EARLIEST` or `LATEST`; None: not given.
        starting_timestamp, ending_timestamp: ms; they override offsets.
        latest_if_no_record_is_later: begin at the end if the starting time is after the last record; false: raise an
            error.
        starting_times, ending_times: (topic, queue id) to ms. Queues not in them have no such bound.
        starting_queues, ending_queues: (topic, queue id) to a queue offset, or `EARLIEST` or `LATEST`.
        max_bytes_per_trigger, max_offsets_per_trigger: bounds of one micro-batch; the second counts rows.
        min_offsets_per_trigger: a micro-batch waits for this many rows, but at most for max_trigger_delay_ms.
        verifies_what_is_read: bodies that no column needs are not compared with their CRCs.
        split_bytes: what one task reads; 0: not given, and `with_columns` chooses.
        store_id: the store's id in the checkpoint of a stream; None: recognise it by its own id, or by the marks.
    """

    store: str
    schema_mode: SchemaMode
    table: TableOptions
    columns: tuple[str, ...] | None
    starting_offset: int | None
    ending_offset: int | None
    starting_timestamp: int | None
    ending_timestamp: int | None
    starting_times: dict[Queue, int]
    ending_times: dict[Queue, int]
    starting_queues: dict[Queue, int]
    ending_queues: dict[Queue, int]
    latest_if_no_record_is_later: bool
    max_bytes_per_trigger: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    verifies_what_is_read: bool
    min_partitions: int
    split_bytes: int
    reads: Literal["durable", "appended"]
    store_id: str | None
    pushdown: bool


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse Spark's option strings.

    Raises:
        ConfigError: an option is unknown or has a wrong value; the message names it.
    """
    given = OptionStrings(options)
    starting_timestamp = given.optional_number("startingTimestamp")
    ending_timestamp = given.optional_number("endingTimestamp")
    # As in Kafka's source, a time for all queues overrides times by queue, and these override offsets.
    starting_times = given.times("startingOffsetsByTimestamp") if starting_timestamp is None else {}
    ending_times = given.times("endingOffsetsByTimestamp") if ending_timestamp is None else {}
    starting_offset, starting_queues = given.offsets("startingOffsets")
    ending_offset, ending_queues = given.offsets("endingOffsets")
    if starting_times or starting_timestamp is not None:
        starting_offset, starting_queues = None, {}
    if ending_times or ending_timestamp is not None:
        ending_offset, ending_queues = None, {}
    for (topic, queue_id), offset in ending_queues.items():
        if offset == EARLIEST:
            raise ConfigError(
                f"no queue can end at its earliest offset: option=endingOffsets topic={topic} queue_id={queue_id}"
            )
    max_rows = given.number("maxOffsetsPerTrigger", 0) or None
    min_rows = given.number("minOffsetsPerTrigger", 0) or None
    if min_rows is not None and max_rows is not None and min_rows > max_rows:
        raise ConfigError(
            f"a micro-batch cannot wait for more records than it may have: minOffsetsPerTrigger={min_rows} "
            f"maxOffsetsPerTrigger={max_rows}"
        )
    verify_crc = given.choice("verifyCrc", Literal["read", "all", "tail", "none"], "read")
    on_corruption = given.choice("onCorruption", Literal["fail", "report"], "fail")
    mode = given.choice("schemaMode", SchemaMode, "rocketmq")
    row_format = RowFormat(
        schema_mode="kafka" if mode == "kafka" else "rocketmq",
        properties_format=given.choice("propertiesFormat", Literal["map", "json", "string"], "map"),
        decompress=given.flag("decompress", True),
        include_headers=given.flag("includeHeaders", False),
        timestamp_column=given.choice("timestampColumn", Literal["store", "born"], "store"),
        broker_name=given.text("brokerName"),
    )
    table = TableOptions(
        row_format=row_format,
        row_filter=row_filter(given, {*starting_queues, *ending_queues, *starting_times, *ending_times}),
        verify_crc="all" if verify_crc == "read" else verify_crc,
        on_corruption=on_corruption,
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        batch_rows=given.number("batchRows", 4096),
        batch_bytes=given.size("batchBytes", 16 << 20),
    )
    strategy = given.choice("startingOffsetsByTimestampStrategy", Literal["error", "latest"], "error")
    return ReadOptions(
        store=given.store(),
        schema_mode=mode,
        table=table,
        columns=given.names("columns", "names of columns such as topic,tags"),
        starting_offset=starting_offset,
        ending_offset=ending_offset,
        starting_timestamp=starting_timestamp,
        ending_timestamp=ending_timestamp,
        starting_times=starting_times,
        ending_times=ending_times,
        starting_queues=starting_queues,
        ending_queues=ending_queues,
        latest_if_no_record_is_later=strategy == "latest",
        max_bytes_per_trigger=given.size("maxBytesPerTrigger", 0) or None,
        max_offsets_per_trigger=max_rows,
        min_offsets_per_trigger=min_rows,
        max_trigger_delay_ms=given.duration_ms("maxTriggerDelay", 15 * TIME_UNITS["m"]),
        # A damaged record must be left out whatever the columns are.
        verifies_what_is_read=verify_crc == "read" and on_corruption == "fail",
        min_partitions=given.number("minPartitions", 1),
        split_bytes=given.size("splitBytes", 0),
        reads=given.choice("reads", Literal["durable", "appended"], "durable"),
        store_id=given.text("storeId"),
        pushdown=given.flag("pushdown", True),
    )


def row_filter(given: OptionStrings, bounded: Iterable[Queue]) -> RowFilter:
    """Return the conditions on topics and queues; *bounded*: queues that get a bound when the log is known."""
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if given.text(name) is not None]
    if len(chosen) > 1:
        raise ConfigError(f"only one of these options may be given: options={','.join(chosen)}")
    topics = given.names("subscribe", "topics such as orders,payments")
    return RowFilter(
        topics=None if topics is None else frozenset(topics),
        topic_pattern=given.text("subscribePattern"),
        queues=given.assigned(),
        user_topics_only=given.flag("userTopicsOnly", False),
        queue_ranges=dict.fromkeys(bounded, QueueRange()) or None,
    )


class OptionStrings:
    """Options as Spark passes them: strings, with case-insensitive names."""

    def __init__(self, options: Mapping[str, str], names: Iterable[str] = OPTION_NAMES) -> None:
        known = {name.lower(): name for name in names}
        self.values: dict[str, str] = {}
        for name, value in options.items():
            if name.lower() not in known:
                near = difflib.get_close_matches(name.lower(), known, 1)
                hint = f" nearest={known[near[0]]}" if near else ""
                raise ConfigError(f"no such option: option={name}{hint}")
            self.values[known[name.lower()]] = value

    def text(self, name: str) -> str | None:
        """Return an option unchanged, None if it was not given."""
        return self.values.get(name)

    def wrong(self, name: str, wanted: str) -> ConfigError:
        """Return the error for a value that the option does not accept."""
        return ConfigError(f"the option takes {wanted}: option={name} value={self.values[name]!r}")

    def store(self) -> str:
        """Return the store directory as an absolute path; the option may be a ``file:`` URL."""
        path = self.text("path")
        if not path:
            raise ConfigError(
                "name the store directory: option=path",
                'Write .load("/path/of/the/store"), or .save(…). A table in SQL has the option path and no list of '
                "columns, and is only read.",
            )
        if path.startswith("file:"):
            path = unquote(urlsplit(path).path)
        return os.path.abspath(path)

    def names(self, name: str, wanted: str) -> tuple[str, ...] | None:
        """Return a list of comma-separated names without repetitions; None if the option was not given.

        Raises:
            ConfigError: the option holds no name; *wanted* describes its values.
        """
        value = self.text(name)
        if value is None:
            return None
        found = tuple(dict.fromkeys(filter(None, map(str.strip, value.split(",")))))
        if not found:
            raise self.wrong(name, wanted)
        return found

    def choice(self, name: str, choices: Any, default: Any) -> Any:
        """Return one of a few words."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in get_args(choices):
            raise self.wrong(name, "|".join(get_args(choices)))
        return value.lower()

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise self.wrong(name, "true|false")
        return value.lower() == "true"

    def optional_number(self, name: str) -> int | None:
        """Return a non-negative integer, None if it was not given."""
        value = self.text(name)
        if value is None:
            return None
        if not value.isascii() or not value.isdigit():
            raise self.wrong(name, "a whole number")
        return int(value)

    def number(self, name: str, default: int) -> int:
        """Return an integer of at least one."""
        value = self.optional_number(name)
        if value == 0:
            raise self.wrong(name, "a number of at least one")
        return default if value is None else value

    def size(self, name: str, default: int) -> int:
        """Return a number of bytes: ``67108864``, ``64m`` or ``64MB``."""
        value = self.text(name)
        if value is None:
            return default
        match = re.fullmatch(r"([0-9]+)\s*([a-z]*)", value.strip().lower())
        if match is None or match[2] not in SIZE_UNITS or int(match[1]) == 0:
            raise self.wrong(name, "a number of bytes such as 67108864 or 64m")
        return int(match[1]) * SIZE_UNITS[match[2]]

    def duration_ms(self, name: str, default: int) -> int:
        """Return a time span in ms: ``90s``, ``15m``, ``1 min`` or a number of ms, as Spark writes it."""
        value = self.text(name)
        if value is None:
            return default
        match = re.fullmatch(r"([0-9]+)\s*([a-z]*)", value.strip().lower())
        if match is None or match[2] not in TIME_UNITS:
            raise self.wrong(name, "a time such as 15m or 30s")
        return int(match[1]) * TIME_UNITS[match[2]]

    def times(self, name: str) -> dict[Queue, int]:
        """Return the times (ms) by queue of an option in the form of Kafka's source."""
        value = self.text(name)
        if value is None:
            return {}
        try:
            parsed = msgspec.json.decode(value, type=dict[str, dict[int, Annotated[int, msgspec.Meta(ge=0)]]])
        except msgspec.MsgspecError:
            raise self.wrong(name, 'times in ms by queue as JSON such as {"orders":{"0":1700000000000}}') from None
        return {(topic, queue): time for topic, queues in parsed.items() for queue, time in queues.items()}

    def offsets(self, name: str) -> tuple[int | None, dict[Queue, int]]:
        """Return the commit-log offset or the offsets by queue of an option in one of the forms of Kafka's source."""
        value = self.text(name)
        if value is None:
            return None, {}
        words = {"earliest": EARLIEST, "latest": LATEST}
        if value.strip().lower() in words:
            return words[value.strip().lower()], {}
        if value.isascii() and value.isdigit():
            return int(value), {}
        try:
            parsed = msgspec.json.decode(value, type=dict[str, dict[int, Annotated[int, msgspec.Meta(ge=EARLIEST)]]])
        except msgspec.MsgspecError:
            wanted = 'earliest, latest, a commit-log offset, or JSON such as {"orders":{"0":23,"1":-2}}'
            raise self.wrong(name, wanted) from None
        return None, {(topic, queue): offset for topic, queues in parsed.items() for queue, offset in queues.items()}

    def assigned(self) -> frozenset[Queue] | None:
        """Return the queues of ``assign``."""
        value = self.text("assign")
        if value is None:
            return None
        try:
            parsed = msgspec.json.decode(value, type=dict[str, list[int]])
        except msgspec.MsgspecError:
            parsed = {}
        if not any(parsed.values()):
            raise self.wrong("assign", "JSON such as " + json.dumps({"orders": [0, 1]}))
        return frozenset((topic, queue) for topic, queues in parsed.items() for queue in queues)
