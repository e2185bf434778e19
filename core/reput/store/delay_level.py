"""Delay levels: how long a delayed message waits.

Source: RocketMQ store, MessageStoreConfig.messageDelayLevel and ScheduleMessageService.computeDeliverTimestamp.
"""

from __future__ import annotations

from reput.errors import ConfigError

__all__ = ["SCHEDULE_TOPIC", "DelayLevels"]

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
UNKNOWN_LEVEL_MS = 1_000


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
            self.delay_ms.append(int(number) * UNIT_MS[unit])

    @property
    def level_max(self) -> int:
        """The highest level."""
        return len(self.delay_ms)

    def deliver_timestamp(self, level: str, store_timestamp: int) -> int | None:
        """Return when a record of the schedule topic is due, in ms since 1970; None if *level* is not above 0.

        A level above the highest counts as the highest.
        """
        try:
            number = min(int(level), self.level_max)
        except ValueError:
            return None
        if number <= 0:
            return None
        return store_timestamp + self.delay_ms[number - 1]
