"""Building views from the log into another directory."""

from __future__ import annotations

import pytest

from reput.errors import ConfigError, DamagedStore, DispatcherError, NotAStore
from reput.process.owner.offline_rebuild import rebuild
from reput.settings import load_settings

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("name", ["basic-5.3", "basic-4.9", "batch-4.9"])
def test_golden_queues_come_out_equal(name, golden_read_only, broker_properties, tmp_path):
    """Consume queues built by dispatcher processes have RocketMQ's bytes, and the store is only read."""
    store = golden_read_only(name) / "store"
    settings = load_settings(broker_properties(name)).settings
    rows = list(rebuild(store, ["consume_queue", "index"], tmp_path / "target", settings))
    assert {row.view for row in rows} == {"consume_queue", "index"}
    for path in sorted((store / "consumequeue").rglob("00*")):
        built = tmp_path / "target" / path.relative_to(store)
        ours = built.read_bytes().rstrip(b"\0") if built.exists() else b""
        assert ours == path.read_bytes().rstrip(b"\0"), path


def test_rows_say_what_was_done(log, plugins, tmp_path):
    """Records and bytes of the log, and the view's directory; progress is reported meanwhile."""
    plugins.add("probe")
    log.put(100)
    told = []
    settings = load_settings().settings
    target = tmp_path / "target"
    (row,) = rebuild(log.store_directory, ["probe"], target, settings, on_progress=lambda *now: told.append(now))
    assert (row.view, row.records, row.bytes, row.swapped) == ("probe", 100, log.end, False)
    assert row.target == str(tmp_path / "target")
    assert told[-1] == ("probe", log.end, log.end)
    assert (tmp_path / "target/reput/views/probe/probe.json").exists()
    assert not (log.store_directory / "reput/views").exists()


def test_a_log_that_begins_late_is_counted_from_there(log, plugins, tmp_path):
    """The number of records that retention removed is unknown; only the processed ones count."""
    plugins.add("probe")
    log.put(10)
    settings = load_settings().settings
    (row,) = rebuild(log.store_directory, ["probe"], tmp_path / "target", settings)
    assert row.records == 10


@pytest.mark.parametrize(("at", "data"), [(0, b"rubbish!"), (88, b"!")])
def test_damage_ends_a_rebuild_with_its_place(log, plugins, tmp_path, capfd, at, data):
    """An incomplete view is not returned as complete. A body whose CRC does not match is damage, too."""
    plugins.add("probe")
    log.put(10)
    with (log.store_directory / "commitlog" / f"{0:020}").open("r+b") as segment:
        segment.seek(log.offsets[4] + at)
        segment.write(data)
    with pytest.raises(DamagedStore, match=f"from={log.offsets[4]} until={log.offsets[5]} ") as caught:
        list(rebuild(log.store_directory, ["probe"], tmp_path / "target", load_settings().settings))
    assert "reput repair" in caught.value.advice
    # Only the error reports it; the log of the processes is in the target.
    assert capfd.readouterr().err == ""
    assert "ERROR" in (tmp_path / "target" / "reput" / "log" / "group.log").read_text()


def test_a_crashing_plugin_ends_a_rebuild_with_its_error(log, plugins, tmp_path):
    """The error contains the plugin's message."""
    plugins.add("probe")
    log.put(10)
    settings = load_settings(**{"dispatchers.probe.crash_at": 0}).settings
    with pytest.raises(DispatcherError, match="crash at 0"):
        list(rebuild(log.store_directory, ["probe"], tmp_path / "target", settings))


def test_a_target_in_the_store_or_with_the_view_is_refused(log, plugins, tmp_path):
    """Nothing is overwritten, and the store is never written."""
    plugins.add("probe")
    log.put(1)
    settings = load_settings().settings
    with pytest.raises(ConfigError, match="in the store"):
        list(rebuild(log.store_directory, ["probe"], log.store_directory / "x", settings))
    list(rebuild(log.store_directory, ["probe"], tmp_path / "target", settings))
    with pytest.raises(ConfigError, match="already"):
        list(rebuild(log.store_directory, ["probe"], tmp_path / "target", settings))


def test_a_view_that_lies_elsewhere_is_not_built_apart_without_a_word(log, plugins, tmp_path, events):
    """It would be sent all records again. With *force*, the dispatcher is told that this is a rehearsal."""
    plugins.add("probe", 'reads="appended", view_elsewhere=lambda options: bool(options.elsewhere)')
    log.put(3)
    (tmp_path / "there").mkdir()
    settings = load_settings(**{"dispatchers.probe.elsewhere": str(tmp_path / "there")}).settings
    with pytest.raises(ConfigError, match=r"the view lies elsewhere, .* dispatcher=probe"):
        list(rebuild(log.store_directory, ["probe"], tmp_path / "target", settings))
    assert events("probe") == []
    assert not (tmp_path / "target").exists()
    list(rebuild(log.store_directory, ["probe"], tmp_path / "target", settings, force=True))
    assert events("probe", "create") == [["rehearsal"]]
    list(rebuild(log.store_directory, ["probe"], tmp_path / "other", load_settings().settings))


def test_an_unknown_view_and_no_store_are_refused(log, plugins, tmp_path):
    """The errors come before anything is created."""
    log.put(1)
    settings = load_settings().settings
    with pytest.raises(ConfigError, match="nonsense"):
        list(rebuild(log.store_directory, ["nonsense"], tmp_path / "target", settings))
    with pytest.raises(NotAStore):
        list(rebuild(tmp_path / "nothing", ["probe"], tmp_path / "other", settings))
    assert not (tmp_path / "other").exists()
