"""RowFilter: which records of the log become rows.

The filter evaluates thousands of records at once, before it touches any body.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from reput.errors import ConfigError
from reput.table.record_parts import TOPIC, RecordParts

__all__ = ["QueueRange", "RowFilter", "is_user_topic"]

Array = np.ndarray[Any, Any]

# Topics for the broker's own use. Source: RocketMQ common, TopicValidator and MixAll.
SYSTEM_TOPICS = frozenset(
    {
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
SYSTEM_TOPIC_PREFIXES = ("rmq_sys_", "%RETRY%", "%DLQ%")


def is_user_topic(topic: str) -> bool:
    """Return whether *topic* is a user's: not a system topic, half messages, retries or dead letters."""
    return topic not in SYSTEM_TOPICS and not topic.startswith(SYSTEM_TOPIC_PREFIXES)


class QueueRange(msgspec.Struct, frozen=True):
    """The records of one queue with queue offsets in [begin, until); None: no bound.

    *commit_log_offset_min* and *commit_log_offset_until* bound the same records by their places in the log; the second
    is excluded.
    """

    begin: int | None = None
    until: int | None = None
    commit_log_offset_min: int | None = None
    commit_log_offset_until: int | None = None


class RowFilter(msgspec.Struct, frozen=True, kw_only=True):
    """All conditions must hold. None: no condition.

    Attributes:
        topics: names.
        topic_pattern: regular expression that the whole name matches.
        queues: (topic, queue id) pairs.
        queue_ids: queue ids, of any topic.
        user_topics_only: skip system topics, half messages, retries and dead letters.
        store_timestamp_min, store_timestamp_until: ms; the second is excluded. `LogTable` searches the log for them, as
            if store times ascended, give or take a minute.
        any_store_timestamp_min, any_store_timestamp_until: the same without a search: the time of every record is
            compared, so a broker's clock may have been set back.
        queue_offset_min, queue_offset_until: units; the second is excluded.
        commit_log_offset_min, commit_log_offset_until: bytes; the second is excluded.
        queue_ranges: (topic, queue id) to a range of queue offsets; other queues are not bounded.
    """

    topics: frozenset[str] | None = None
    topic_pattern: str | None = None
    queues: frozenset[tuple[str, int]] | None = None
    queue_ids: frozenset[int] | None = None
    user_topics_only: bool = False
    store_timestamp_min: int | None = None
    store_timestamp_until: int | None = None
    any_store_timestamp_min: int | None = None
    any_store_timestamp_until: int | None = None
    queue_offset_min: int | None = None
    queue_offset_until: int | None = None
    commit_log_offset_min: int | None = None
    commit_log_offset_until: int | None = None
    queue_ranges: dict[tuple[str, int], QueueRange] | None = None

    def __post_init__(self) -> None:
        if self.topic_pattern is not None:
            try:
                re.compile(self.topic_pattern)
            except re.error as error:
                raise ConfigError(
                    f"the pattern of topics is not a regular expression: pattern={self.topic_pattern!r} error={error}"
                ) from None

    def rows(self, parts: RecordParts) -> Array:
        """Return the numbers of the records of *parts* that pass, ascending."""
        columns = parts.columns
        header = columns.header
        passed = np.ones(len(columns), np.bool_)
        if self.queue_ids is not None:
            passed &= np.isin(header["queue_id"], list(self.queue_ids))
        bounds = (
            (columns.store_timestamp, self.store_timestamp_min, self.store_timestamp_until),
            (columns.store_timestamp, self.any_store_timestamp_min, self.any_store_timestamp_until),
            (header["queue_offset"], self.queue_offset_min, self.queue_offset_until),
            (header["commit_log_offset"], self.commit_log_offset_min, self.commit_log_offset_until),
        )
        for values, begin, until in bounds:
            if begin is not None or until is not None:
                passed &= within(values, begin, until)
        if self.asks_for_topics() and passed.any():
            self.match_topics(parts, passed)
        return np.flatnonzero(passed)

    def asks_for_topics(self) -> bool:
        """Return whether any condition needs the records' topics."""
        conditions = (self.topics, self.topic_pattern, self.queues, self.queue_ranges)
        return self.user_topics_only or any(condition is not None for condition in conditions)

    def topic_passes(self) -> Callable[[str], bool]:
        """Return the conditions on a topic's name as one function."""
        pattern = re.compile(self.topic_pattern) if self.topic_pattern is not None else None
        of_queues = None if self.queues is None else {topic for topic, _ in self.queues}

        def passes(topic: str) -> bool:
            return (
                (self.topics is None or topic in self.topics)
                and (pattern is None or pattern.fullmatch(topic) is not None)
                and (of_queues is None or topic in of_queues)
                and (not self.user_topics_only or is_user_topic(topic))
            )

        return passes

    def match_topics(self, parts: RecordParts, passed: Array) -> None:
        """Clear *passed* where a condition on the topic or the queue fails. Each distinct topic is tested once."""
        columns = parts.columns
        encoded = parts.take(TOPIC, np.arange(len(columns))).dictionary_encode()
        topics = [topic.decode("utf-8", "replace") for topic in encoded.dictionary.to_pylist()]
        topic_of = encoded.indices.to_numpy()
        passed &= np.fromiter(map(self.topic_passes(), topics), np.bool_, len(topics))[topic_of]
        if self.queues is None and self.queue_ranges is None:
            return
        queue_ids = columns.header["queue_id"]
        in_queues = np.zeros(len(columns), np.bool_)
        for number, topic in enumerate(topics):
            of_topic = passed & (topic_of == number)
            if not of_topic.any():
                continue
            for queue_id in np.unique(queue_ids[of_topic]).tolist():
                if self.queues is not None and (topic, queue_id) not in self.queues:
                    continue
                of_queue = of_topic & (queue_ids == queue_id)
                bounds = (self.queue_ranges or {}).get((topic, queue_id))
                if bounds is not None:
                    of_queue &= within(columns.header["queue_offset"], bounds.begin, bounds.until)
                    places = bounds.commit_log_offset_min, bounds.commit_log_offset_until
                    of_queue &= within(columns.header["commit_log_offset"], *places)
                in_queues |= of_queue
        passed &= in_queues


def within(values: Array, begin: int | None, until: int | None) -> Array:
    """Return where *begin* <= value < *until*; None: no bound."""
    passed = np.ones(len(values), np.bool_)
    if begin is not None:
        passed &= values >= begin
    if until is not None:
        passed &= values < until
    return passed
