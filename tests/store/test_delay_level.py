"""Delay levels: RocketMQ's table of waiting times."""

from __future__ import annotations

import pytest

from reput.errors import ConfigError
from reput.store.delay_level import DelayLevels

NOW = 1_700_000_000_000


def test_the_default_table_is_rocketmqs():
    """Eighteen levels, from a second to two hours."""
    levels = DelayLevels()
    assert levels.level_max == 18
    assert levels.delay_ms[:4] == [1_000, 5_000, 10_000, 30_000]
    assert levels.delay_ms[-2:] == [3_600_000, 7_200_000]


def test_a_table_of_ones_own():
    """Seconds, minutes, hours, days."""
    assert DelayLevels("7s 2m 1h 3d").delay_ms == [7_000, 120_000, 3_600_000, 259_200_000]


@pytest.mark.parametrize("text", ["1", "s", "1w", "1.5s", "-1s", "1s 2", "١s", "9999999999d"])
def test_what_is_no_time_is_refused(text):
    """The part is named."""
    with pytest.raises(ConfigError, match="message_delay_level="):
        DelayLevels(text)


@pytest.mark.parametrize(
    ("level", "due"),
    [
        ("1", NOW + 1_000),
        ("3", NOW + 10_000),
        ("18", NOW + 7_200_000),
        ("99", NOW + 7_200_000),
        ("0", None),
        ("-1", None),
        ("", None),
        ("x", None),
    ],
)
def test_when_a_record_of_a_level_is_due(level, due):
    """A level above the highest counts as the highest; what is no level above 0 does not wait."""
    assert DelayLevels().deliver_timestamp(level, NOW) == due
