"""Delay levels: RocketMQ's table of delays."""

from __future__ import annotations

import pytest

from reput.errors import ConfigError, MessageIllegal
from reput.store.record.delay_level import SCHEDULE_TOPIC, DelayLevels
from reput.store.record.message import Message, MessageExtBrokerInner

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
    """The invalid part is named."""
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
    """A level above the highest counts as the highest; level 0 and invalid levels do not wait."""
    assert DelayLevels().deliver_timestamp(level, NOW) == due


@pytest.mark.parametrize(
    ("delay_level", "text", "level"),
    [
        (0, None, 0),
        (3, None, 3),
        (99, None, 18),
        (0, "3", 3),
        (0, "+03", 3),
        (0, "2147483647", 18),
        (0, "0", 0),
        (0, "-1", 0),
        (0, "", 0),
        (3, "3", 3),
        (99, "18", 18),
        # As in dead letters.
        (5, "0", 5),
    ],
)
def test_the_property_says_the_level_as_much_as_the_field(delay_level, text, level):
    """RocketMQ's own clients use it."""
    properties = None if text is None else {"DELAY": text}
    assert DelayLevels().level_of(Message("orders", b"", properties=properties, delay_level=delay_level)) == level


@pytest.mark.parametrize("text", ["x", "3s", " 3", "1.5", "2147483648", "9" * 5000])
def test_a_property_that_is_no_level_is_refused(text):
    """RocketMQ's broker also refuses it; the error has the value."""
    with pytest.raises(MessageIllegal, match=r"a delay level must be a number: topic='orders' DELAY='") as caught:
        DelayLevels().level_of(Message("orders", b"", properties={"DELAY": text}))
    assert caught.value.advice


def test_field_and_property_do_not_name_two_levels():
    """Neither takes precedence."""
    with pytest.raises(MessageIllegal, match="different delays: delay_level=2 DELAY='3'"):
        DelayLevels().level_of(Message("orders", b"", properties={"DELAY": "3"}, delay_level=2))


@pytest.mark.parametrize(
    "message",
    [
        MessageExtBrokerInner("orders", b"", properties={"DELAY": "3"}),
        Message(SCHEDULE_TOPIC, b"", properties={"DELAY": "3"}),
    ],
)
def test_what_was_delayed_before_is_not_delayed_again(message):
    """Delivered messages keep the property, and messages put to the schedule topic wait there."""
    assert DelayLevels().level_of(message) == 0
