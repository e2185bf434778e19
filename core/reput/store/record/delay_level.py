"""Delay levels: how long a delayed message waits.

Source: RocketMQ store, MessageStoreConfig.messageDelayLevel and ScheduleMessageService.computeDeliverTimestamp.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from reput.errors import ConfigError, MessageIllegal
from reput.filter.errors import FilterEvaluationError
from reput.filter.java_numbers import read_int
from reput.store.record.message import Message, MessageExtBrokerInner, check_properties

__all__ = ["SCHEDULE_TOPIC", "DelayHistory", "DelayLevels"]

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
UNKNOWN_LEVEL_MS = 1_000
# Limit for a delay, in any unit: the delivery time is a 64-bit number.
DIGITS_MAX = 9


class DelayLevels:
    """The delay of each level in ms, from level 1 on."""

    def __init__(self, text: str = DEFAULT_LEVELS) -> None:
        """*text* is RocketMQ's setting: numbers with a unit of s, m, h or d, separated by spaces.

        Raises:
            ConfigError: a part is no such number.
        """
        self.delay_ms: list[int] = []
        for part in text.split():
            number, unit = part[:-1], part[-1:]
            if unit not in UNIT_MS or not number.isascii() or not number.isdigit():
                raise ConfigError(f"a delay level must be a number with s, m, h or d: message_delay_level={part!r}")
            if len(number) > DIGITS_MAX:
                raise ConfigError(f"a delay level is too long: message_delay_level={part!r}")
            self.delay_ms.append(int(number) * UNIT_MS[unit])

    @property
    def level_max(self) -> int:
        """The highest level."""
        return len(self.delay_ms)

    def level_of(self, message: Message) -> int:
        """Return the delay level of *message*, the highest level at most; 0: no delay.

        The property ``DELAY``, which RocketMQ's clients set, counts as much as the field does, with two exceptions. For
        a `MessageExtBrokerInner` only the field counts: a message that was delayed before keeps the property, and would
        wait again. For the schedule topic, too: its records wait where they are.

        Raises:
            MessageIllegal: a level is not a number, field and property differ, or the properties are invalid.

        Source: RocketMQ common, Message.getDelayTimeLevel.
        """
        level = message.delay_level
        if type(level) is not int or level < 0:
            raise MessageIllegal(f"a delay level must be a nonnegative number: delay_level={level!r}")
        level = min(level, self.level_max)
        check_properties(message.properties)
        text = None if message.properties is None else message.properties.get("DELAY")
        # Without a value it is no level for RocketMQ; a value that is not text is refused with the other properties.
        if not text or not isinstance(text, str):
            return level
        if isinstance(message, MessageExtBrokerInner) or message.topic == SCHEDULE_TOPIC:
            return level
        try:
            named = max(0, min(read_int(text), self.level_max))
        except FilterEvaluationError:
            raise MessageIllegal(
                f"a delay level must be a number: topic={message.topic!r} DELAY={text!r}",
                "Give the message a delay_level, or its property DELAY a number.",
            ) from None
        # A dead letter has DELAY=0; it may still be put again with a delay.
        if level and named and level != named:
            raise MessageIllegal(
                f"field and property give different delays: delay_level={message.delay_level} DELAY={text!r}",
                "Omit one of them.",
            )
        return level or named

    def delay_of(self, level: str) -> int | None:
        """Return how long a record of the schedule topic with this ``DELAY`` waits, in ms; None if it is not above 0.

        A level above the highest counts as the highest.

        Raises:
            ConfigError: *level* is no number as Java reads them.
        """
        try:
            number = min(read_int(level), self.level_max)
        except FilterEvaluationError:
            raise ConfigError(f"a delay level must be a number: delay_level={level!r}") from None
        return self.delay_ms[number - 1] if number > 0 else None

    def deliver_timestamp(self, level: str, store_timestamp: int) -> int | None:
        """Return when such a record is delivered, in ms since 1970; None: it does not wait, or *level* is not a
        number."""
        try:
            delay_ms = self.delay_of(level)
        except ConfigError:
            return None
        return None if delay_ms is None else store_timestamp + delay_ms


class DelayHistory:
    """The delay levels of one store, which may have been changed: each holds from a commit-log offset on."""

    def __init__(self, parts: Sequence[tuple[int, str]] = ((0, DEFAULT_LEVELS),)) -> None:
        """*parts*: the offsets, ascending, and RocketMQ's setting that holds from there on.

        Raises:
            ConfigError: as of `DelayLevels`.
        """
        self.begins = [begin for begin, _ in parts]
        self.levels = [DelayLevels(text) for _, text in parts]

    def at(self, commit_log_offset: int) -> DelayLevels:
        """Return the levels that hold for a record at this offset."""
        return self.levels[max(bisect_right(self.begins, commit_log_offset) - 1, 0)]

    def longest_delay(self, level: int) -> int:
        """Return the longest delay in ms that *level* ever had; `UNKNOWN_LEVEL_MS` for a level that never existed."""
        delays = [levels.delay_ms[level - 1] for levels in self.levels if level <= levels.level_max]
        return max(delays, default=UNKNOWN_LEVEL_MS)
