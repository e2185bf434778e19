"""`reput settings`, and the use of a store's recorded settings by the other verbs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import reput
from command_line import run_reput
from reput.cli import main

LEVELS = "1s 5s 1h"


@pytest.fixture
def delayed(tmp_path: Path) -> Path:
    """A store that was opened with its own delay levels, with a message that waits for an hour."""
    store = tmp_path / "store"
    with reput.open(
        store,
        mode="inline",
        message_delay_level=LEVELS,
        mapped_file_size_commit_log=1 << 16,
        max_hash_slot_num=100,
        max_index_num=400,
    ) as opened:
        opened.put(reput.Message("orders", b"late", delay_level=3))
    return store


def rows(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


@pytest.mark.slow
def test_what_a_program_opened_a_store_with_holds_for_every_verb(delayed, tmp_path):
    """A message of a one-hour level stays in place, in later openings too, and no view is reported as different."""
    sent = run_reput("send", delayed, "orders", "--count", 1, "--delay-level", 3)
    assert sent.code == 0, sent.stderr
    assert "level 3" in sent.stdout
    taken = run_reput("consume", delayed, "orders", "--group", "g", "--format", "json")
    assert (taken.code, taken.stdout) == (1, "")
    assert run_reput("rebuild", delayed).code == 0
    assert run_reput("rebuild", delayed, "consume_queue", "--target", tmp_path / "anew").code == 0
    units = run_reput("dump", delayed, "--view", "consume_queue", "--topic", "SCHEDULE_TOPIC_XXXX", "--format", "json")
    now = time.time() * 1000
    assert [0 < unit["tags_code"] - now <= 3_600_000 for unit in units.rows()] == [True, True]
    checked = run_reput("check", delayed, "--format", "json")
    assert checked.code == 0, checked.stdout
    assert {name: view["state"] for name, view in checked.report()["views"].items()}["consume_queue"] == "equal"
    assert run_reput("get", delayed, "orders", 0, 0).code == 1


def test_status_shows_the_settings_that_decide_what_bytes_mean(delayed, capsys):
    """As JSON and as text."""
    assert main(["status", str(delayed)]) == 0
    assert f"message_delay_level='{LEVELS}'" in capsys.readouterr().out
    report = run_reput("status", delayed, "--format", "json").report()
    assert report["settings"]["message_delay_level"] == LEVELS
    assert report["settings"]["enable_multi_dispatch"] is False
    assert report["settings"]["max_index_num"] == 400


@pytest.mark.parametrize("verb", ["check", "status", "send", "rebuild", "settings"])
def test_every_verb_refuses_another_value(delayed, verb, capsys):
    """Exit code 2, both values, and the command that changes it."""
    more = ["orders", "--count", "1"] if verb == "send" else []
    assert main([verb, str(delayed), *more, "--set", "messageDelayLevel=1s"]) == 2
    assert "message_delay_level='1s' recorded='1s 5s 1h'" in (told := capsys.readouterr().err)
    assert "reput settings STORE --change message_delay_level=" in told


@pytest.mark.slow
def test_a_change_that_is_asked_for_by_name_holds_for_what_comes_then(delayed, capsys):
    """Waiting messages keep their time, and check knows both values."""
    assert main(["settings", str(delayed), "--change", "messageDelayLevel=1s 5s 2h", "--format", "json"]) == 0
    shown = [row for row in rows(capsys) if "message_delay_level" in row]
    assert len(shown) == 2
    assert '"from":0' in shown[0]
    assert "1s 5s 2h" in shown[1]
    assert run_reput("send", delayed, "orders", "--count", 1, "--delay-level", 3).code == 0
    units = run_reput("dump", delayed, "--view", "consume_queue", "--topic", "SCHEDULE_TOPIC_XXXX", "--format", "json")
    first, second = (unit["tags_code"] for unit in units.rows())
    assert second - first >= 3_600_000
    assert run_reput("check", delayed).code == 0
    assert main(["check", str(delayed), "--set", "messageDelayLevel=1s 5s 2h"]) == 0


def test_what_nothing_is_recorded_of_has_exit_code_1(golden, capsys):
    """A store that only RocketMQ has written; the verb changes nothing in it."""
    store = golden("basic-5.3") / "store"
    assert main(["settings", str(store)]) == 1
    assert not (store / "reput").exists()


def test_a_change_of_a_setting_that_is_not_recorded_is_refused(delayed, capsys):
    """It is given like any other setting, as the error says."""
    assert main(["settings", str(delayed), "--change", "fileReservedTime=5"]) == 2
    assert "not recorded with a store: change_settings=fileReservedTime" in capsys.readouterr().err


def test_a_program_changes_a_setting_by_name(delayed):
    """`reput.open` refuses another value, unless *change_settings* has its name."""
    with pytest.raises(reput.ConfigError, match="message_delay_level='1s' recorded="):
        reput.open(delayed, mode="inline", message_delay_level="1s")
    with pytest.raises(reput.ConfigError, match="opened for reading"):
        reput.open(delayed, read_only=True, change_settings=["message_delay_level"])  # type: ignore[call-overload]
    with reput.open(
        delayed, mode="inline", message_delay_level="1s", change_settings=["message_delay_level"]
    ) as opened:
        assert opened.status().settings["message_delay_level"] == "1s"
        assert opened._engine.waiting_delays() == {3: 1}


@pytest.mark.slow
def test_a_broker_s_own_file_is_recorded_at_the_first_writing(golden, broker_properties, tmp_path, capsys):
    """From then on it need not be given; its delay levels apply to every verb."""
    store = golden("basic-5.3") / "store"
    config = tmp_path / "broker.conf"
    config.write_bytes(broker_properties("basic-5.3").read_bytes() + b"\nmessageDelayLevel=1s 7s\n")
    assert main(["check", str(store), "--config", str(config)]) == 0
    assert not (store / "reput").exists()
    sent = ["send", str(store), "orders", "--count", "1", "--delay-level", "2"]
    assert main([*sent, "--config", str(config)]) == 0
    assert run_reput("status", store, "--format", "json").report()["settings"]["message_delay_level"] == "1s 7s"
    assert main(["check", str(store)]) == 0
    assert main(["check", str(store), "--config", str(config)]) == 0
    assert main(["check", str(store), "--set", "message_delay_level=1s"]) == 2


@pytest.mark.slow
def test_delays_that_a_store_shows_need_not_be_configured(delayed, capsys):
    """For a store without a record, like one of RocketMQ; an explicit configuration takes precedence."""
    (delayed / "reput" / "store.json").unlink()
    assert main(["check", str(delayed)]) == 0
    levels = run_reput("status", delayed, "--format", "json").report()["settings"]["message_delay_level"].split()
    assert levels[:4] == ["1s", "5s", "3600s", "30s"]
    assert main(["check", str(delayed), "--set", f"message_delay_level={LEVELS}"]) == 0
    assert main(["check", str(delayed), "--set", "message_delay_level=1s 5s 2h"]) == 1


def test_a_store_that_a_program_has_open_keeps_its_settings(delayed, capsys):
    """They can be shown meanwhile."""
    with reput.open(delayed, mode="inline"):
        assert run_reput("settings", delayed).code == 0
        changed = run_reput("settings", delayed, "--change", "message_delay_level=1s")
        assert changed.code == 3
        assert f"pid={os.getpid()}" in changed.stderr
