"""Options shared by several verbs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from reput.cli.application import application
from reput.cli.terminal.options import parse_time, settings_of
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
    """The result is milliseconds since 1970 UTC."""
    assert parse_time(text) == time


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "2026-13-01", "१२"])
def test_what_is_no_time_is_refused(text: str):
    """The error has the text."""
    with pytest.raises(typer.BadParameter, match="is neither milliseconds since 1970 nor a time"):
        parse_time(text)


def test_settings_that_go_unused_are_listed_once(golden_read_only, broker_properties, capsys):
    """On stderr, so that they are not mistaken for effective."""
    loaded = settings_of(golden_read_only("basic-4.9") / "store", broker_properties("basic-4.9"), ["max_index_num=7"])
    assert loaded.settings.max_index_num == 7
    assert loaded.settings.max_hash_slot_num == 257
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "reput: settings that only RocketMQ uses: traceTopicEnable\n"


def test_a_wrong_setting_is_refused(golden_read_only):
    """By name."""
    with pytest.raises(ConfigError, match="name=colour"):
        settings_of(golden_read_only("basic-4.9") / "store", None, ["colour=blue"])


def leaves(command: Any, name: str = "reput") -> Iterator[tuple[str, Any]]:
    """Yield the verbs below *command* with their names."""
    if hasattr(command, "commands"):
        for part, below in command.commands.items():
            yield from leaves(below, f"{name} {part}")
    else:
        yield name, command


def test_every_verb_on_a_store_takes_settings():
    """So a script may pass the same settings to each of them."""
    on_stores = {
        name: {option for parameter in verb.params for option in parameter.opts}
        for name, verb in leaves(typer.main.get_command(application()))
        if any(parameter.metavar in ("STORE", "TARGET") for parameter in verb.params)
    }
    assert {"reput repair", "reput doctor", "reput dispatcher pause", "reput topic list"} <= set(on_stores)
    assert [name for name, options in on_stores.items() if not {"--config", "--set"} <= options] == []


@pytest.mark.slow
def test_a_setting_that_makes_no_difference_is_checked_all_the_same(tmp_path):
    """A verb that does not use settings also refuses a wrong one, with or without a store."""
    for arguments in (["doctor"], ["doctor", str(tmp_path)], ["dispatcher", "list", str(tmp_path)]):
        with pytest.raises(ConfigError, match="nonsense"):
            typer.main.get_command(application())([*arguments, "--set", "nonsense=1"], standalone_mode=False)
