"""What a view does when the log was cut, trimmed, damaged or replaced, inline."""

from __future__ import annotations

import errno
import os

import pytest

from process.owner.inline_groups import TIMEOUT, wait_for_change, wait_for_state
from reput.process.dispatcher import log_reading
from reput.process.dispatcher.states import State
from reput.store.disk.files import Files
from reput.store.state.dispatcher_cursors import keep_dispatcher_cursors
from reput.store.state.topic_deletions import TopicDeletion, TopicDeletions


@pytest.fixture
def looks_again_soon(monkeypatch):
    """A dispatcher that met damage looks again after 10 ms instead of a second."""
    monkeypatch.setattr(log_reading, "DAMAGE_RETRY_S", 0.01)


def test_a_view_of_another_format_is_built_again_inline(log, plugins, context, inline, saved):
    """In place, once, because there is no second process."""
    plugins.add("probe")
    inline(context("probe")).drain_and_stop()
    log.publisher = None
    log.put(10)
    plugins.add("newer", 'reads="appended", view_version=3')
    (log.store_directory / "reput/views/probe").rename(log.store_directory / "reput/views/newer")
    for _ in range(2):
        inline(context("newer")).drain_and_stop()
        log.publisher = None
        assert (log.store_directory / "reput/views/newer/.view_version").read_text() == "3"
        log.put(3)
    assert saved("newer")["offsets"] == log.offsets[:13]


def test_a_view_elsewhere_is_not_emptied_when_the_log_s_history_parts(log, plugins, context, inline, events):
    """The whole log would be sent again. The dispatcher stops, and says what an operator can do."""
    plugins.add("probe", 'reads="appended", view_elsewhere=True')
    group = inline(context("probe"))
    group.wait_for("probe", log.put(10), TIMEOUT)
    assert not events("probe", "create")[0]
    group.drain_and_stop()
    log.publisher = None
    log.begin_epoch(log.offsets[5])
    group = inline(context("probe"), epoch=2)
    wait_for_state(group, "probe", State.FATAL)
    assert "the view lies elsewhere, and only an operator may rebuild it" in group.status()[0].error
    assert len(events("probe", "dispatch")) == 1


def test_a_view_elsewhere_whose_cursor_is_gone_does_not_begin_anew_by_itself(log, plugins, context, inline, events):
    """Its folder was removed. The store knows that the view was further, so nothing is sent again."""
    plugins.add("probe", 'reads="appended", view_elsewhere=True')
    log.put(10)
    keep_dispatcher_cursors(log.store_directory, {"probe": log.offsets[5]}, Files())
    group = inline(context("probe"))
    wait_for_state(group, "probe", State.FATAL)
    assert f"all records would be sent again: dispatcher=probe came_to={log.offsets[5]}" in group.status()[0].error
    assert events("probe", "dispatch") == []
    group.drain_and_stop()
    keep_dispatcher_cursors(log.store_directory, {"probe": 0}, Files())
    group = inline(context("probe"))
    group.wait_for("probe", log.end, TIMEOUT)


def test_a_cut_log_truncates_the_view(log, plugins, context, inline, saved, events):
    """A view beyond the cut undoes the later records and continues from there."""
    plugins.add("probe")
    options = {"probe": {"truncates": True}}
    log.put(10)
    inline(context("probe", options=options)).drain_and_stop()
    log.begin_epoch(log.offsets[4])
    inline(context("probe", options=options), epoch=2).drain_and_stop()
    assert events("probe", "truncate") == [[log.offsets[4]]]
    assert saved("probe")["offsets"] == log.offsets
    assert saved("probe")["cursor"]["epoch"] == 2


@pytest.mark.parametrize("start", [0, 2], ids=["the beginning", "below the minimum"])
def test_no_view_is_truncated_below_the_minimum_of_the_log(log, plugins, context, inline, saved, events, start):
    """The remaining log cannot contradict what retention removed; views keep those records."""
    plugins.add("probe")
    options = {"probe": {"truncates": True}}
    log.put(10)
    inline(context("probe", options=options)).drain_and_stop()
    log.begin_epoch(log.offsets[start])
    inline(context("probe", options=options), epoch=2, commit_log_offset_min=log.offsets[6]).drain_and_stop()
    assert events("probe", "truncate") == [[log.offsets[6]]]
    assert saved("probe")["offsets"] == log.offsets


def test_a_view_that_ends_below_the_minimum_has_nothing_to_take_back(log, plugins, context, inline, saved, events):
    """It continues after the gap."""
    plugins.add("probe")
    options = {"probe": {"truncates": True}}
    log.put(4)
    inline(context("probe", options=options)).drain_and_stop()
    log.put(6)
    log.begin_epoch(0)
    inline(context("probe", options=options), epoch=2, commit_log_offset_min=log.offsets[6]).drain_and_stop()
    assert events("probe", "truncate") == []
    assert saved("probe")["offsets"] == [*log.offsets[:4], *log.offsets[6:]]


def test_a_view_that_is_ahead_of_the_log_takes_in_again_what_the_log_has(log, plugins, context, inline, saved, events):
    """For example after restoring an older copy of the log: records below its minimum stay."""
    plugins.add("probe")
    options = {"probe": {"truncates": True}}
    log.put(10)
    inline(context("probe", options=options)).drain_and_stop()
    end = log.offsets[8]
    group = inline(context("probe", options=options), appended=end, durable=end, commit_log_offset_min=log.offsets[3])
    group.drain_and_stop()
    assert events("probe", "truncate") == [[log.offsets[3]]]
    assert saved("probe")["offsets"] == log.offsets[:8]


def test_a_view_that_cannot_be_truncated_is_built_again(log, plugins, context, inline, saved, events):
    """`RebuildNeeded` empties the view and begins with the log."""
    plugins.add("probe")
    log.put(10)
    inline(context("probe")).drain_and_stop()
    (log.store_directory / "reput/views/probe/rubbish").touch()
    log.begin_epoch(log.offsets[4])
    inline(context("probe"), epoch=2).drain_and_stop()
    assert saved("probe")["offsets"] == log.offsets
    assert not (log.store_directory / "reput/views/probe/rubbish").exists()
    assert events("probe", "start") == [[None], [log.end], [None]]


def test_an_emptying_that_was_cut_short_is_finished(log, plugins, context, inline, saved):
    """The intent on disk marks the rest of the view as invalid."""
    plugins.add("probe")
    log.put(3)
    inline(context("probe")).drain_and_stop()
    (log.store_directory / "reput/views/probe.emptying").touch()
    log.put(3)
    inline(context("probe")).drain_and_stop()
    assert saved("probe")["offsets"] == log.offsets
    assert not (log.store_directory / "reput/views/probe.emptying").exists()


def test_a_cursor_of_another_store_is_refused(log, plugins, context, inline, saved):
    """A view copied from elsewhere is neither continued nor retried."""
    plugins.add("probe")
    log.put(3)
    inline(context("probe")).drain_and_stop()
    path = log.store_directory / "reput/views/probe/probe.json"
    path.write_text(path.read_text().replace(saved("probe")["cursor"]["store_id"], "f" * 32))
    group = inline(context("probe"))
    wait_for_state(group, "probe", State.FATAL)
    assert "another store" in (group.status()[0].error or "")


def test_changes_come_between_the_batches(log, plugins, context, inline, events):
    """Topic deletions and trims come at their places; a live cut undoes later records."""
    plugins.add("probe")
    group = inline(context("probe", options={"probe": {"truncates": True}}))
    group.wait_for("probe", log.put(2), TIMEOUT)
    middle = log.offsets[1]
    generation = group.generation("probe")
    assert log.publisher is not None
    log.publisher.delete_topic("orders", log.end, log.ordinal)
    log.publisher.expire(middle, log.end, log.ordinal)
    log.put(1)
    log.begin_epoch(log.offsets[2])
    log.publisher.truncate(2, log.offsets[2], 0, 2)
    end = log.end = log.offsets[2]
    log.put(1)
    group.wait_for("probe", log.end, TIMEOUT)
    group.drain_and_stop()
    kinds = [event for event in events("probe") if event[0] in ("delete_topic", "expire", "truncate")]
    assert ["delete_topic", "orders"] in kinds
    assert ["expire", middle] in kinds
    assert ["truncate", end] in kinds
    assert group.status()[0].durable_cursor == log.end
    # Readers may have files of the topic open.
    assert group.generation("probe") > generation


def test_what_retention_took_is_a_gap_for_ever(log, plugins, context, inline, saved):
    """A view that comes too late reports the bytes it never had, also at later starts."""
    plugins.add("probe")
    log.put(2)
    inline(context("probe")).drain_and_stop()
    log.publisher = None
    log.put(4)
    minimum = log.offsets[5]
    for _ in range(2):
        group = inline(context("probe"), commit_log_offset_min=minimum)
        group.wait_for("probe", log.end, TIMEOUT)
        group.drain_and_stop()
        assert group.status()[0].gap_bytes == minimum - log.offsets[2]
    assert saved("probe")["offsets"] == [*log.offsets[:2], log.offsets[5]]


@pytest.mark.usefixtures("looks_again_soon")
def test_a_body_that_changed_on_disk_stops_a_plugin_until_it_is_accepted(log, plugins, context, inline, saved):
    """A plugin that reads the log gets the records before it; otherwise it would process the damaged body."""
    plugins.add("probe")
    log.put(5)
    with (log.store_directory / "commitlog" / f"{0:020d}").open("r+b") as segment:
        segment.seek(log.offsets[2] + 89)
        segment.write(b"\xff")
    group = inline(context("probe"))
    group.wait_for("probe", log.offsets[2], TIMEOUT)
    while not (error := next(row.error for row in group.status() if row.name == "probe")):
        wait_for_change(group)
    assert error.startswith(f"a CRC does not match: from={log.offsets[2]} until={log.offsets[3]}")
    log.accept_damage(log.offsets[2], log.offsets[3])
    group.wait_for("probe", log.end, TIMEOUT)
    group.drain_and_stop()
    assert saved("probe")["offsets"] == [*log.offsets[:2], *log.offsets[3:]]


@pytest.mark.usefixtures("looks_again_soon")
def test_damage_stops_a_dispatcher_until_it_is_accepted(log, plugins, context, inline, saved):
    """The dispatcher reports why it stopped, and continues after the damage is accepted."""
    plugins.add("probe")
    log.put(5)
    log.publisher = None
    with (log.store_directory / "commitlog" / f"{0:020}").open("r+b") as segment:
        segment.seek(log.offsets[2])
        segment.write(b"rubbish!")
    group = inline(context("probe"))
    group.wait_for("probe", log.offsets[2], TIMEOUT)
    cell = group.members["probe"].cell
    while "magic_code" not in (cell.error or ""):
        wait_for_change(group)
    log.accept_damage(log.offsets[2], log.offsets[3])
    group.wait_for("probe", log.end, TIMEOUT)
    group.drain_and_stop()
    assert saved("probe")["offsets"] == [*log.offsets[:2], *log.offsets[3:]]
    assert group.status()[0].restart_count == 0


@pytest.mark.usefixtures("looks_again_soon")
def test_what_the_disk_cannot_read_stops_a_dispatcher_until_it_can(log, plugins, context, inline, saved, monkeypatch):
    """It reports the place and the reason, is not restarted for it, and continues by itself."""
    plugins.add("probe")
    log.put(5)
    log.publisher = None
    pread, broken = os.pread, True

    def failing(descriptor, size, at):
        if broken and "commitlog" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(descriptor, size, at)

    monkeypatch.setattr(os, "pread", failing)
    group = inline(context("probe"))
    cell = group.members["probe"].cell
    while not (cell.error or "").startswith("the disk cannot read the log: commit_log_offset=0 "):
        wait_for_change(group)
    assert group.status()[0].state == "RUNNING"
    broken = False
    group.wait_for("probe", log.end, TIMEOUT)
    group.drain_and_stop()
    assert saved("probe")["offsets"] == log.offsets
    assert (group.status()[0].restart_count, group.status()[0].error) == (0, None)


def test_a_late_dispatcher_learns_of_deleted_topics_at_their_places(log, plugins, context, inline, events):
    """A view that is built from the log forgets a topic at its deletion, and keeps later messages."""
    plugins.add("probe")
    deletions = TopicDeletions(log.store_directory)
    first = log.put(3)
    deletions.add(TopicDeletion(0, first, "orders"))
    end = log.put(2)
    group = inline(context("probe"))
    group.wait_for("probe", end, TIMEOUT)
    group.drain_and_stop()
    kinds = [event for event in events("probe") if event[0] in ("dispatch", "delete_topic")]
    assert kinds == [["dispatch", 0, first, 3], ["delete_topic", "orders"], ["dispatch", first, end, 2]]
