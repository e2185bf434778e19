"""One dispatcher in the caller's own process, for a debugger."""

from __future__ import annotations

import json

import pytest

import reput
from process.contract.written_dispatchers import TOPIC_COUNT
from process.probe_plugin import PluginFolder
from reput.errors import ConfigError

TIMEOUT = 60.0


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A store with ten counted messages, and five more that were put while the dispatcher was not enabled."""
    folder = PluginFolder(tmp_path / "plugins")
    folder.add("counts", source=TOPIC_COUNT)
    folder.add("probe")
    monkeypatch.syspath_prepend(str(folder.folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "store"
    for dispatchers, count in ((["consume_queue", "counts"], 10), (["consume_queue"], 5)):
        with reput.open(path, dispatchers=dispatchers, mode="inline") as store:
            for _ in range(count):
                result = store.put(reput.Message("orders", b"one"))
            store.wait_for("consume_queue", result.next_commit_log_offset, TIMEOUT)
    return path


def counted(root, name="counts"):
    """Return the data of the view below *root* on disk."""
    return json.loads((root / "reput" / "views" / name / "topic_count.json").read_bytes())["count"]


@pytest.mark.slow
def test_it_goes_on_where_the_store_s_view_ends(path, tmp_path):
    """On a copy; the store's own view is unchanged."""
    with reput.debug(path, "counts", target=tmp_path / "target") as debugged:
        debugged.run()
        assert debugged.batch_count == 1
        assert debugged.dispatcher.count == {"orders": 15}
    assert counted(tmp_path / "target") == {"orders": 15}
    assert counted(path) == {"orders": 10}


@pytest.mark.slow
def test_one_whose_view_lies_elsewhere_runs_on_the_author_s_word_alone(path, tmp_path):
    """It would send records there again. It is told that this is a rehearsal."""
    PluginFolder(tmp_path / "plugins").add("sink", 'reads="durable", view_elsewhere=True')
    with pytest.raises(ConfigError, match=r"the view lies elsewhere, .* dispatcher=sink") as refused:
        reput.debug(path, "sink")
    assert "--force" in refused.value.advice
    with reput.debug(path, "sink", force=True) as debugged:
        debugged.run()
        assert debugged.dispatcher.context.rehearsal


@pytest.mark.slow
def test_it_begins_with_the_log_if_asked(path):
    """With an empty view, which is removed by `close`."""
    with reput.debug(path, "counts", empty=True) as debugged:
        assert debugged.dispatcher is None
        assert debugged.step()
        assert debugged.dispatcher.count == {}
        debugged.run()
        assert debugged.dispatcher.count == {"orders": 15}
        root = debugged.root
        assert root.exists()
    assert not root.exists()


@pytest.mark.slow
def test_an_exception_comes_out_where_it_was_called(path):
    """Unchanged; nothing is restarted."""
    settings = {"dispatchers.probe.crash_at": 0}
    with pytest.raises(ValueError, match="crash at 0"), reput.debug(path, "probe", **settings) as debugged:
        debugged.run()


@pytest.mark.processes
def test_it_is_fed_with_what_is_put_meanwhile(path, monkeypatch):
    """Beside a writer, whose own dispatcher of that name is not disturbed."""
    with (
        reput.open(path, dispatchers=["consume_queue"]) as store,
        reput.debug(path, "counts", empty=True) as debugged,
    ):
        debugged.run()
        for count in range(16, 19):
            store.put(reput.Message("orders", b"more"))
            store.flush()
            while debugged.dispatcher.count["orders"] < count:
                debugged.run()
        assert debugged.cursor.commit_log_offset == store.appended


@pytest.mark.processes
def test_a_view_that_is_being_written_is_not_copied(path):
    """The copy might mix old and new data."""
    with reput.open(path, dispatchers=["counts"]) as store:
        store.wait_for("counts", store.appended, TIMEOUT)
        with pytest.raises(reput.DispatcherError, match="state=RUNNING"):
            reput.debug(path, "counts")


@pytest.mark.slow
def test_a_target_is_not_gone_on_with(path, tmp_path):
    """Its origin is unknown."""
    with reput.debug(path, "counts", target=tmp_path / "target") as debugged:
        debugged.run()
    with pytest.raises(reput.ConfigError, match="holds this view"):
        reput.debug(path, "counts", target=tmp_path / "target")
