"""`reput dispatcher dead-letters`: showing and replaying rejected records."""

from __future__ import annotations

import base64

import pytest

import reput
from command_line import run_reput
from process.probe_plugin import PluginFolder

pytestmark = pytest.mark.processes

TIMEOUT = 60.0


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Return a function that opens a store whose dispatcher rejects the record at 0 until a file exists."""
    folder = PluginFolder(tmp_path / "plugins")
    folder.add("probe")
    monkeypatch.syspath_prepend(str(folder.folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = tmp_path / "reput.toml"
    config.write_text(f'[dispatchers.probe]\nreject_at = 0\nreject_until = "{tmp_path / "go"}"\n')
    return lambda: reput.open(tmp_path / "store", dispatchers=["consume_queue", "probe"], config=config)


def put_and_reject(opened):
    """Put two messages, the first of which is rejected."""
    opened.put(reput.Message("orders", b"poison", keys=["order-1"]))
    result = opened.put(reput.Message("orders", b"two"))
    opened.wait_for("probe", result.next_commit_log_offset, TIMEOUT)


def test_what_was_rejected_is_shown_with_its_reason(store, tmp_path):
    """In the usual form of records, whether the store is open or not."""
    with store() as opened:
        put_and_reject(opened)
        (row,) = run_reput("dispatcher", "dead-letters", tmp_path / "store", "probe", "--format", "json").rows()
    assert (row["reason"], row["commit_log_offset"], row["topic"], row["epoch"]) == ("poison", 0, "orders", 1)
    assert base64.b64decode(row["body"]) == b"poison"
    assert row["properties"]["KEYS"] == "order-1"
    text = run_reput("dispatcher", "dead-letters", tmp_path / "store", "probe").stdout
    assert "Z  poison\n" in text
    assert "orders 0@0" in text


def test_a_running_dispatcher_takes_them_at_once(store, tmp_path):
    """Records that it rejects again stay."""
    with store() as opened:
        put_and_reject(opened)
        replay = ["dispatcher", "dead-letters", tmp_path / "store", "probe", "--replay", "--format", "json"]
        (row,) = run_reput(*replay).rows()
        assert (row["outcome"], row["reason"], row["commit_log_offset"]) == ("rejected", "poison", 0)
        (tmp_path / "go").touch()
        assert [row["outcome"] for row in run_reput(*replay).rows()] == ["taken"]
        assert run_reput(*replay).rows() == []
        assert run_reput("dispatcher", "dead-letters", tmp_path / "store", "probe").stdout == ""


def test_one_that_does_not_run_gets_them_when_it_starts(store, tmp_path):
    """The request is stored."""
    with store() as opened:
        put_and_reject(opened)
    done = run_reput("dispatcher", "dead-letters", tmp_path / "store", "probe", "--replay")
    assert done.code == 0
    assert "waiting" in done.stdout
    (tmp_path / "go").touch()
    with store() as opened:
        opened.wait_for("probe", opened.appended, TIMEOUT)
    assert run_reput("dispatcher", "dead-letters", tmp_path / "store", "probe", "--format", "json").rows() == []


def test_a_dispatcher_that_rejected_nothing_has_none(store, tmp_path):
    """That is not an error."""
    with store() as opened:
        put_and_reject(opened)
    done = run_reput("dispatcher", "dead-letters", tmp_path / "store", "consume_queue")
    assert (done.code, done.stdout) == (0, "")


def test_a_name_that_nobody_has_is_refused(store, tmp_path):
    """A mistyped name must not look as if nothing had been rejected; letters of detached dispatchers are shown."""
    with store() as opened:
        put_and_reject(opened)
    for options in ((), ("--replay",)):
        refused = run_reput("dispatcher", "dead-letters", tmp_path / "store", "prbe", *options)
        assert refused.code == 2
        assert "no such dispatcher is installed: dispatcher=prbe" in refused.stderr
    with reput.open(tmp_path / "store", dispatchers=["consume_queue"]):
        pass
    assert "poison" in run_reput("dispatcher", "dead-letters", tmp_path / "store", "probe").stdout
