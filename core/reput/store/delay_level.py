"""Delay levels: how long a delayed message waits.

Source: RocketMQ store, MessageStoreConfig.messageDelayLevel and ScheduleMessageService.computeDeliverTimestamp.
"""

from __future__ import annotations

from reput.errors import ConfigError
from reput.filter.errors import FilterEvaluationError
from reput.filter.java_numbers import read_int

__all__ = ["SCHEDULE_TOPIC", "DelayLevels"]

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
UNKNOWN_LEVEL_MS = 1_000
# Of a delay, in whatever unit: the time when a message is due is a number of 64 bits.
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
                raise ConfigError(f"a delay level is a number with s, m, h or d: message_delay_level={part!r}")
            if len(number) > DIGITS_MAX:
                raise ConfigError(f"a delay level is longer than any clock goes: message_delay_level={part!r}")
            self.delay_ms.append(int(number) * UNIT_MS[unit])

    @property
    def level_max(self) -> int:
        """The highest level."""
        return len(self.delay_ms)

    def delay_of(self, level: str) -> int | None:
        """Return how long a record of the schedule topic with this ``DELAY`` waits, in ms; None if it is not above 0.

        A level above the highest counts as the highest.

        Raises:
            ConfigError: *level* is no number as Java reads them.
        """
        try:
            number = min(read_int(level), self.level_max)
        except FilterEvaluationError:
            raise ConfigError(f"a delay level is a number: delay_level={level!r}") from None
        return self.delay_ms[number - 1] if number > 0 else None

    def deliver_timestamp(self, level: str, store_timestamp: int) -> int | None:
        """Return when such a record is due, in ms since 1970; None if it does not wait, or *level* is no number."""
        try:
            delay_ms = self.delay_of(level)
        except ConfigError:
            return None
        return None if delay_ms is None else store_timestamp + delay_ms
