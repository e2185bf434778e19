"""Options that several verbs take."""

from __future__ import annotations

import pytest
import typer

from reput.cli.options import parse_time, settings_of
from reput.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("0", 0),
        ("1795256886654", 1795256886654),
        ("2026-11-21T10:28:06.654Z", 1795256886654),
        ("2026-11-21T11:28:06.654+01:00", 1795256886654),
        ("2026-11-21T00:00:00Z", 1795219200000),
    ],
)
def test_a_time_is_a_number_or_iso_8601(text: str, time: int):
    """Milliseconds since 1970 UTC come out."""
    assert parse_time(text) == time


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "2026-13-01", "१२"])
def test_what_is_no_time_is_refused(text: str):
    """The text stands in the sentence."""
    with pytest.raises(typer.BadParameter, match="is neither milliseconds since 1970 nor a time"):
        parse_time(text)


def test_settings_that_go_unused_are_listed_once(golden_read_only, broker_properties, capsys):
    """On stderr, so that nobody believes they did something."""
    loaded = settings_of(golden_read_only("basic-4.9") / "store", broker_properties("basic-4.9"), ["max_index_num=7"])
    assert loaded.settings.max_index_num == 7
    assert loaded.settings.max_hash_slot_num == 257
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "reput: settings that only RocketMQ uses: brokerRole, traceTopicEnable\n"


def test_a_wrong_setting_is_refused(golden_read_only):
    """By its name."""
    with pytest.raises(ConfigError, match="name=colour"):
        settings_of(golden_read_only("basic-4.9") / "store", None, ["colour=blue"])
