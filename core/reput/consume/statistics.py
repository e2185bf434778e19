"""Statistics: what was put and consumed since the store was opened, by topic and group.

Counts begin with zero when a store that was opened is asked for its services first. What nobody measured is None,
never 0.

Source of the names: RocketMQ broker, BrokerStatsManager (GROUP_GET_NUMS, GROUP_GET_SIZE, SNDBCK_PUT_NUMS, …).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import msgspec

__all__ = ["GroupStatistics", "Statistics"]


class GroupStatistics(msgspec.Struct):
    """One group on one topic.

    Attributes:
        get_nums, get_size: messages that the group was given, and bytes of their records.
        send_back_nums: messages that it sent back.
        dead_letter_nums: those of them that went to the dead letters.
        latency_ms: between the storing of a message and its giving, measured with the first of each read; None before.
        latency_max_ms: the longest.
    """

    get_nums: int = 0
    get_size: int = 0
    send_back_nums: int = 0
    dead_letter_nums: int = 0
    latency_ms: int | None = None
    latency_max_ms: int | None = None

    def look(self, store_timestamp: int) -> None:
        """The group is about to be given a message that was stored then, in ms since 1970."""
        self.latency_ms = max(0, time.time_ns() // 1_000_000 - store_timestamp)
        self.latency_max_ms = max(self.latency_ms, self.latency_max_ms or 0)


class Statistics:
    """The counts of one store. Any thread may call.

    Args:
        put_totals: gives by topic how many messages were ever put to it.
    """

    def __init__(self, put_totals: Callable[[], Mapping[str, int]]) -> None:
        self.put_totals = put_totals
        self.put_before = dict(put_totals())
        self.lock = threading.Lock()
        self.groups: dict[tuple[str, str], GroupStatistics] = {}

    def put_nums(self, topic: str) -> int | None:
        """Return how many messages were put to a topic since; None: it was deleted meanwhile, or never was."""
        total = self.put_totals().get(topic)
        before = self.put_before.get(topic, 0)
        return None if total is None or total < before else total - before

    def of_group(self, group: str, topic: str) -> GroupStatistics:
        """Return the counts of a group on a topic as they are now and will be."""
        found = self.groups.get((group, topic))
        if found is None:
            with self.lock:
                found = self.groups.setdefault((group, topic), GroupStatistics())
        return found

    def sent_back(self, group: str, topic: str, *, dead: bool) -> None:
        """A group has sent a message back; *dead*: it is a dead letter now."""
        found = self.of_group(group, topic)
        with self.lock:
            found.send_back_nums += 1
            found.dead_letter_nums += dead
