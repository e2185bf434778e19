"""The loops of the dispatchers, on one thread of the program."""

from __future__ import annotations

import errno
import json
import os
import threading

import pytest

from delivering import wait_until
from process.probe_plugin import PROBE
from reput.errors import ConfigError, DispatcherError, WaitTimeout
from reput.process.dispatcher import log_reading
from reput.process.dispatcher.states import State, StopMode
from reput.process.owner.inline_group import InlineGroup
from reput.process.views.dead_letters import DeadLetters
from reput.store.disk.files import Files
from reput.store.state.dispatcher_cursors import keep_dispatcher_cursors
from reput.store.state.topic_deletions import TopicDeletion, TopicDeletions

TIMEOUT = 60.0


def state_of(group, name):
    """Return the state shown by `status`."""
    return next(row.state for row in group.status() if row.name == name)


def wait_for_state(group, name, *states):
    """Wait until a dispatcher is in one of *states*."""
    with group.ring.changed:
        assert group.ring.changed.wait_for(lambda: State(group.members[name].cell.state) in states, TIMEOUT)


def wait_for_change(group):
    """Wait until something in the group may have changed."""
    with group.ring.changed:
        group.ring.changed.wait(0.01)


@pytest.fixture
def looks_again_soon(monkeypatch):
    """A dispatcher that met damage looks again after 10 ms instead of a second."""
    monkeypatch.setattr(log_reading, "DAMAGE_RETRY_S", 0.01)


def test_what_is_put_is_dispatched(log, plugins, context, inline):
    """Each record comes once, and the progress reaches the log's end."""
    plugins.add("probe")
    group = inline(context("probe"))
    for _ in range(10):
        end = log.put(3)
    group.wait_for("probe", end, TIMEOUT)
    assert group.progress("probe") == end
    (row,) = group.status()
    assert (row.state, row.lag_bytes, row.lag_messages, row.distribution) == ("RUNNING", 0, 0, "probes")
    assert row.counters == {"seen": 30}


@pytest.mark.parametrize("drain_has_begun", [False, True])
def test_a_drain_has_an_end(log, plugins, context, inline, saved, drain_has_begun):
    """Records taken in until then are flushed; the rest follows at the next opening."""
    plugins.add("probe")
    group = inline(context("probe", options={"probe": {"seconds_per_record": 0.005}}))
    log.put(1)
    # Only then is it certain that the dispatcher has begun.
    wait_until(lambda: (group.progress("probe") or 0) > 0)
    for _ in range(399):
        log.put(1)
    if drain_has_begun:
        group.tell(StopMode.DRAIN)
        wait_until(lambda: group.status()[0].state == "STOPPING")
    group.drain_and_stop(0.0)
    taken = saved("probe")["offsets"]
    assert 0 < len(taken) <= 400
    assert taken == log.offsets[: len(taken)]
    inline(context("probe")).drain_and_stop()
    assert saved("probe")["offsets"] == log.offsets


def test_two_dispatchers_of_one_plugin_run_side_by_side(log, plugins, context, inline, saved):
    """With separate options, views and progress."""
    plugins.add("sink")
    options = {"orders_hook": {"plugin": "sink"}, "audit_hook": {"plugin": "sink", "retry_count": 2}}
    group = inline(context("orders_hook", "audit_hook", options=options))
    for name in ("orders_hook", "audit_hook"):
        group.wait_for(name, log.put(3), TIMEOUT)
    group.drain_and_stop()
    assert saved("orders_hook")["offsets"] == saved("audit_hook")["offsets"] == log.offsets


def test_a_late_dispatcher_reads_the_log_first(log, plugins, context, inline, saved):
    """Earlier records are read from the commit log, later ones from frames, without a gap."""
    plugins.add("probe")
    log.put(100)
    group = inline(context("probe"))
    group.wait_for("probe", log.put(1), TIMEOUT)
    group.wait_for("probe", log.put(1), TIMEOUT)
    group.drain_and_stop()
    assert saved("probe")["offsets"] == log.offsets


@pytest.mark.parametrize("bound", ["batch_record_count_max=7", "batch_size_max=1000"])
def test_batches_stay_within_what_the_plugin_declares(log, plugins, context, inline, saved, events, bound):
    """From the log and from frames, however many records a frame has; one record is always dispatched."""
    plugins.add("probe", f'reads="appended", {bound}')
    log.put(50)
    group = inline(context("probe"))
    group.wait_for("probe", log.put(50), TIMEOUT)
    group.wait_for("probe", log.put(1, body=bytes(4000)), TIMEOUT)
    group.wait_for("probe", log.put(3), TIMEOUT)
    group.drain_and_stop()
    assert saved("probe")["offsets"] == log.offsets
    batches = events("probe", "dispatch")
    assert all(count <= 7 or "size" in bound for _, _, count in batches)
    assert all(end - begin <= 1000 or count == 1 or "count" in bound for begin, end, count in batches)
    assert sorted(count for _, _, count in batches)[-3] > 4


def test_it_goes_on_at_its_durable_cursor(log, plugins, context, inline, saved, events):
    """A second start gets the records that the first one did not take in."""
    plugins.add("probe")
    group = inline(context("probe"))
    middle = log.put(10)
    group.drain_and_stop()
    log.publisher = None
    log.put(10)
    group = inline(context("probe"))
    group.drain_and_stop()
    assert events("probe", "start") == [[None], [middle]]
    assert saved("probe")["offsets"] == log.offsets


def test_a_lapped_loop_reads_the_log_again(log, plugins, context, inline, saved):
    """It loses nothing if more frames come than the ring holds while it sleeps."""
    plugins.add("probe")
    group = inline(context("probe"), capacity=1 << 10)
    group.wait_for("probe", log.put(1), TIMEOUT)
    with group.ring.changed:
        for _ in range(50):
            end = log.put(5)
    group.wait_for("probe", end, TIMEOUT)
    group.drain_and_stop()
    assert saved("probe")["offsets"] == log.offsets
    assert group.status()[0].lapped_count > 0


def test_a_durable_reader_sees_only_what_is_durable(log, plugins, context, inline, events):
    """Bytes that a power cut may take are held back, exactly up to a record within a frame."""
    plugins.add("probe", 'reads="durable"')
    group = inline(context("probe"))
    end = log.put(10)
    assert log.publisher is not None
    with pytest.raises(WaitTimeout):
        group.wait_for("probe", log.offsets[0] + 1, 0.3)
    log.publisher.durable(log.offsets[5])
    group.wait_for("probe", log.offsets[5], TIMEOUT)
    assert group.progress("probe") == log.offsets[5]
    log.publisher.durable(end)
    group.wait_for("probe", end, TIMEOUT)
    assert [event[2] for event in events("probe", "dispatch")] == [5, 5]


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


def test_a_successor_stays_behind_its_predecessor(log, plugins, context, inline, events):
    """A record is dispatched only after all dispatchers in ``after`` have it."""
    plugins.add("first")
    plugins.add("second", 'reads="appended", after=("first", "not_enabled")')
    crash = {"first": {"crash_at": 0, "crash_until": str(log.store_directory / "go")}}
    group = inline(context("second", "first", options=crash))
    end = log.put(5)
    wait_for_state(group, "first", State.BACKOFF)
    with pytest.raises(WaitTimeout):
        group.wait_for("second", 1, 0.3)
    (log.store_directory / "go").touch()
    group.wait_for("second", end, TIMEOUT)
    assert events("second", "dispatch") == [[0, end, 5]]


@pytest.mark.parametrize("after_failed", ["wait", "proceed"])
def test_a_failed_predecessor_is_waited_for_or_passed_over(log, plugins, context, inline, after_failed):
    """The dispatcher declares what to do if a predecessor has failed."""
    plugins.add("first")
    plugins.add("second", f'reads="appended", after=("first",), after_failed="{after_failed}"')
    settings = {"dispatcher_restart_count_max": 1, "dispatcher_backoff_min": 1}
    group = inline(context("first", "second", options={"first": {"crash_at": 0}}, **settings))
    end = log.put(5)
    wait_for_state(group, "first", State.FATAL)
    if after_failed == "proceed":
        group.wait_for("second", end, TIMEOUT)
    else:
        with pytest.raises(WaitTimeout):
            group.wait_for("second", 1, 0.3)
    with pytest.raises(DispatcherError, match="state=FATAL"):
        group.wait_for("first", end, TIMEOUT)


def test_a_crashing_dispatcher_is_started_again(log, plugins, context, inline, saved):
    """After an exception it begins at its durable cursor; the error is shown until it runs again."""
    plugins.add("probe")
    go = log.store_directory / "go"
    group = inline(context("probe", options={"probe": {"crash_at": 0, "crash_until": str(go)}}))
    end = log.put(5)
    wait_for_state(group, "probe", State.BACKOFF)
    # Each try clears the previous error.
    while "ValueError: crash at 0" not in (group.status()[0].error or ""):
        wait_for_change(group)
    go.touch()
    group.wait_for("probe", end, TIMEOUT)
    group.drain_and_stop()
    assert saved("probe")["offsets"] == log.offsets
    assert group.status()[0].restart_count >= 1
    assert group.status()[0].error is None


def test_retry_later_without_a_reason_is_shown_all_the_same(log, plugins, context, inline):
    """A waiting dispatcher can be distinguished from an idle one."""
    source = PROBE.replace("DESCRIPTION", 'reads="appended"').replace('raise RetryLater("not now")', "raise RetryLater")
    plugins.add("probe", source=source)
    group = inline(context("probe", options={"probe": {"retry_count": 1 << 30}}))
    log.put(1)
    pause = threading.Event()
    for _ in range(int(TIMEOUT / 0.005)):
        (row,) = group.status()
        if row.error is not None:
            break
        pause.wait(0.005)
    assert row.error == "RetryLater was raised without a reason"


def test_retry_later_brings_the_same_batch_again(log, plugins, context, inline, saved, events):
    """A dispatcher that has changed nothing may request the batch again."""
    plugins.add("probe")
    group = inline(context("probe", options={"probe": {"retry_count": 3}}))
    end = log.put(5)
    group.wait_for("probe", end, TIMEOUT)
    group.drain_and_stop()
    assert len(events("probe", "retry")) == 3
    assert saved("probe")["offsets"] == log.offsets
    assert group.status()[0].restart_count == 0


def test_a_rejected_record_is_a_dead_letter_once(log, plugins, context, inline):
    """The dead-letter file has it once with its bytes, even after it came a second time."""
    plugins.add("probe")
    log.put(3, body=b"poison")
    options = {"probe": {"reject_at": log.offsets[1]}}
    for _ in range(2):
        group = inline(context("probe", options=options))
        group.wait_for("probe", log.end, TIMEOUT)
        group.drain_and_stop()
        assert group.status()[0].rejected_count == 1
        (log.store_directory / "reput/views/probe/probe.json").unlink()
    lines = (log.store_directory / "reput/dead_letters/probe.jsonl").read_text().splitlines()
    (letter,) = map(json.loads, lines)
    assert (letter["commit_log_offset"], letter["reason"]) == (log.offsets[1], "poison")
    assert "cG9pc29u" in letter["record"] or letter["record"]


def rejecting(log, plugins, context, inline, **options):
    """Return a group that rejected the second of four records, which it can now take in."""
    plugins.add("probe")
    log.put(3, body=b"poison")
    options = {"probe": {"reject_at": log.offsets[1], "reject_until": str(log.store_directory / "go"), **options}}
    group = inline(context("probe", options=options))
    group.wait_for("probe", log.put(1), TIMEOUT)
    group.drain_and_stop()
    return lambda: inline(context("probe", options=options))


def test_a_dead_letter_is_replayed_when_somebody_wishes_it(log, plugins, context, inline, events, saved):
    """The letter comes again at the view's position, and once taken in it is no longer a dead letter."""
    start = rejecting(log, plugins, context, inline)
    letters = DeadLetters(log.store_directory, "probe")
    for taken in (False, True):
        if taken:
            (log.store_directory / "go").touch()
        (letter,) = letters.wish_replay()
        group = start()
        group.drain_and_stop()
        assert group.status()[0].rejected_count == (0 if taken else 1)
        assert not letters.replay_is_due()
        assert [left.identity for left in letters.lines.read()] == ([] if taken else [letter.identity])
    assert events("probe", "replay") == [[[log.offsets[1]], log.end]] * 2
    assert saved("probe")["cursor"]["commit_log_offset"] == log.end
    assert letter.reason == "poison"


def test_a_dispatcher_runs_over_damaged_lines_of_its_own_small_files(log, plugins, context, inline, caplog):
    """Its status and the log name the first one with file and line; a damaged request is dropped; nothing is lost."""
    start = rejecting(log, plugins, context, inline)
    letters = DeadLetters(log.store_directory, "probe")
    whole = letters.lines.path.read_bytes()
    letters.lines.path.write_bytes(b"rubbish\n" + whole)
    letters.wish.write_bytes(b"[")
    group = start()
    group.wait_for("probe", log.put(1), TIMEOUT)
    group.drain_and_stop()
    (row,) = group.status()
    assert (row.rejected_count, row.restart_count) == (1, 0)
    assert row.error.startswith(f"a line is not what was written: path={letters.lines.path} line=1 error=")
    assert f"path={letters.lines.path} line=1" in caplog.text
    assert f"path={letters.wish}" in caplog.text
    assert letters.lines.path.read_bytes() == b"rubbish\n" + whole
    assert not letters.replay_is_due()


PARTLY = """
from reput_hooks import *

class Partly(CommitLogDispatcher):
    \"\"\"A server that takes two records and then wants a pause.\"\"\"

    def __init__(self, context):
        self.context, self.end = context, None

    def start(self):
        return None

    def dispatch(self, batch):
        for number, request in enumerate(batch):
            if number == 2:
                raise RetryLater("429 Too Many Requests", until=UNTIL, after=AFTER)
            with open(self.context.store_directory / "taken", "a") as file:
                file.write(f"{request.commit_log_offset}\\n")
            self.end = last = batch.cursor_behind(request)
        self.end = batch.end

    def flush(self):
        return self.end

@hookimpl
def reput_create_dispatcher(context):
    return Partly(context)

@hookimpl
def reput_describe_dispatcher():
    return DispatcherDescription(reads="appended")
"""


def test_a_batch_may_be_taken_in_part_by_part(log, plugins, context, inline):
    """Those parts do not come again, progress and durable cursor follow, and the plugin decides when to continue."""
    plugins.add("partly", source=PARTLY.replace("UNTIL", "last").replace("AFTER", "0.0"))
    log.put(5)
    group = inline(context("partly"))
    group.wait_for("partly", log.end, TIMEOUT)
    (row,) = group.status()
    assert (row.lag_messages, row.restart_count, row.error) == (0, 0, None)
    group.drain_and_stop()
    taken = (log.store_directory / "taken").read_text().split()
    assert list(map(int, taken)) == log.offsets


def test_a_part_that_was_taken_is_progress_while_the_rest_waits(log, plugins, context, inline):
    """For as long as the plugin wants."""
    plugins.add("partly", source=PARTLY.replace("UNTIL", "last").replace("AFTER", "3600"))
    log.put(5)
    group = inline(context("partly"))
    group.wait_for("partly", log.offsets[2], TIMEOUT)
    (row,) = group.status()
    assert (row.progress, row.error) == (log.offsets[2], "429 Too Many Requests")
    while (group.durable_cursor("partly") or 0) < log.offsets[2]:
        wait_for_change(group)
    group.drain_and_stop()
    assert group.durable_cursor("partly") == log.offsets[2]


@pytest.mark.parametrize(
    ("until", "after", "found"),
    [
        ("batch.end", "0", "a cursor in the batch, before its end"),
        ("17", "0", "a cursor in the batch"),
        ("Cursor(last.store_id, 1, last.commit_log_offset - 1, 0)", "0", "a cursor at the end of a record"),
        ("Cursor('f' * 32, 1, last.commit_log_offset, 0)", "0", "a cursor in the batch"),
        ("last", "-1", "a nonnegative number of seconds"),
        ("last", "'soon'", "a nonnegative number of seconds"),
    ],
)
def test_a_retry_that_makes_no_sense_is_refused(log, plugins, context, inline, until, after, found):
    """It is an ordinary failure, with advice."""
    plugins.add("partly", source=PARTLY.replace("UNTIL", until).replace("AFTER", after))
    log.put(5)
    group = inline(context("partly"))
    wait_for_state(group, "partly", State.BACKOFF)
    assert f"RetryLater takes {found}" in group.status()[0].error


def test_dead_letters_are_replayed_in_batches(log, plugins, context, inline, events):
    """Thousands of letters would exceed a time limit that each batch of the log keeps."""
    plugins.add("probe", 'reads="appended", batch_record_count_max=2')
    accepting = log.store_directory / "accepting"
    log.put(5)
    inline(context("probe", options={"probe": {"reject_at": -2, "reject_until": str(accepting)}})).drain_and_stop()
    accepting.touch()
    letters = DeadLetters(log.store_directory, "probe")
    assert len(letters.wish_replay()) == 5
    inline(context("probe")).drain_and_stop()
    replayed = [offsets for offsets, _ in events("probe", "replay")]
    assert [len(offsets) for offsets in replayed] == [2, 2, 1]
    assert [offset for offsets in replayed for offset in offsets] == log.offsets
    assert len(letters) == 0


def test_a_replay_that_ends_in_a_crash_is_not_tried_again(log, plugins, context, inline, events):
    """A record that crashes its dispatcher would do so at every start; the letter stays."""
    group = rejecting(log, plugins, context, inline, crash_in_replay=True)
    letters = DeadLetters(log.store_directory, "probe")
    letters.wish_replay()
    started = group()
    started.wait_for("probe", log.put(1), TIMEOUT)
    started.drain_and_stop()
    assert len(events("probe", "replay")) == 1
    assert started.status()[0].restart_count == 1
    assert (started.status()[0].rejected_count, letters.replay_is_due()) == (1, False)


def test_a_replay_waits_with_its_dispatcher(log, plugins, context, inline, events, monkeypatch):
    """After RetryLater the same letters come again."""
    monkeypatch.setattr("reput.process.dispatcher.letter_replay.RETRY_MAX_S", 0.01)
    start = rejecting(log, plugins, context, inline, replay_later=2)
    (log.store_directory / "go").touch()
    letters = DeadLetters(log.store_directory, "probe")
    letters.wish_replay()
    group = start()
    while letters.replay_is_due():
        wait_for_change(group)
    group.drain_and_stop()
    assert len(events("probe", "replay")) == 3
    assert list(letters.lines.read()) == []


def test_a_letter_whose_record_is_gone_stays(log, plugins, context, inline, events):
    """Retention removed it; the dead-letter file still has its bytes."""
    start = rejecting(log, plugins, context, inline)
    with (log.store_directory / "commitlog" / f"{0:020}").open("r+b") as segment:
        segment.seek(log.offsets[1] + 30)
        segment.write(b"other")
    letters = DeadLetters(log.store_directory, "probe")
    letters.wish_replay()
    start().drain_and_stop()
    assert events("probe", "replay") == []
    assert len(list(letters.lines.read())) == 1
    assert not letters.replay_is_due()


def test_a_group_that_ends_at_once_takes_in_what_is_there(log, plugins, context, inline, saved, monkeypatch):
    """Its thread may start running only then."""
    run = InlineGroup.run

    def run_late(group):
        pause = threading.Event()
        while group.stop is None:
            pause.wait(0.001)
        run(group)

    monkeypatch.setattr(InlineGroup, "run", run_late)
    plugins.add("first")
    plugins.add("second", 'reads="appended", after=("first",)')
    log.put(5)
    group = inline(context("first", "second"))
    group.drain_and_stop()
    assert saved("first")["offsets"] == saved("second")["offsets"] == log.offsets
    assert [row.state for row in group.status()] == ["STOPPED"] * 2


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


def test_positions_come_without_requests(log, plugins, context, inline, events):
    """A plugin that reads the log itself only learns how far the log has grown."""
    plugins.add("probe", 'reads="appended", feeds="positions"')
    middle = log.put(5)
    group = inline(context("probe"))
    group.wait_for("probe", middle, TIMEOUT)
    end = log.put(5)
    group.wait_for("probe", end, TIMEOUT)
    assert events("probe", "dispatch") == [[0, middle, 0], [middle, end, 0]]


def test_a_record_too_large_for_the_ring_comes_from_the_log(log, plugins, context, inline, saved):
    """The hole in the frames is detected and filled."""
    plugins.add("probe")
    group = inline(context("probe"), capacity=400)
    log.put(1)
    log.put(30)
    end = log.put(1)
    group.wait_for("probe", end, TIMEOUT)
    group.drain_and_stop()
    assert saved("probe")["offsets"] == log.offsets


@pytest.mark.parametrize(
    ("options", "named"),
    [({"limt": 3}, "dispatchers.probe.limt"), ({"limit": "many"}, "dispatchers.probe.limit")],
    ids=["unknown", "wrong type"],
)
def test_wrong_options_are_refused_by_name(log, plugins, context, inline, options, named):
    """The wrong option is named, before anything runs."""
    plugins.add("probe")
    with pytest.raises(ConfigError, match=named):
        inline(context("probe", options={"probe": options}))


def test_an_unknown_dispatcher_is_refused_with_the_nearest_name(log, plugins, context, inline):
    """The error suggests the probable name."""
    plugins.add("probe")
    with pytest.raises(ConfigError, match="prob") as caught:
        inline(context("prob"))
    assert "probe" in caught.value.advice


def test_a_plugin_that_cannot_be_imported_is_broken_and_nothing_else(log, plugins, context, inline):
    """The others run; the traceback is shown."""
    plugins.add("probe")
    plugins.add("bad", source="import no_such_module")
    group = inline(context("bad", "probe"))
    group.wait_for("probe", log.put(1), TIMEOUT)
    assert state_of(group, "bad") == "BROKEN"
    assert "no_such_module" in (group.status()[0].error or "")
    with pytest.raises(DispatcherError, match="state=BROKEN"):
        group.wait_for("bad", 1, TIMEOUT)


def test_a_circle_is_refused(log, plugins, context, inline):
    """Dispatchers that wait for each other would never proceed."""
    plugins.add("one", 'after=("two",)')
    plugins.add("two", 'after=("one",)')
    with pytest.raises(ConfigError, match="cycle"):
        inline(context("one", "two"))


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


def test_a_view_is_never_durable_beyond_those_it_comes_after(log, plugins, context, inline):
    """It is flushed only after theirs; a view that is never durable does not block others."""
    plugins.add("first")
    plugins.add("second", 'reads="appended", after=("first",)')
    options = {"first": {"never_durable": True}}
    group = inline(context("first", "second", options=options, dispatcher_flush_interval=10))
    for _ in range(30):
        group.wait_for("second", log.put(1), TIMEOUT)
        wait_for_change(group)
    assert group.durable_cursor("first") == 0
    assert group.durable_cursor("second") == 0
    group.drain_and_stop()
    assert group.durable_cursor("second") == 0


def test_a_view_is_durable_as_soon_as_those_it_comes_after(log, plugins, context, inline):
    """Even under load, since a flushing dispatcher publishes no progress."""
    plugins.add("first")
    plugins.add("second", 'reads="appended", after=("first",)')
    group = inline(context("first", "second", dispatcher_flush_interval=10))
    while not group.durable_cursor("second"):
        group.wait_for("second", log.put(1), TIMEOUT)
    assert group.durable_cursor("second") <= group.durable_cursor("first")


WRONG = """
from reput_hooks import *

class Wrong(CommitLogDispatcher):
    def __init__(self, context):
        self.context = context
    def dispatch(self, batch):
        self.end = batch.end
    METHOD

@hookimpl
def reput_create_dispatcher(context):
    return Wrong(context)

@hookimpl
def reput_describe_dispatcher():
    return DispatcherDescription(reads="appended")
"""


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("def start(self): return 7", "start returned no cursor: dispatcher=wrong returned=7"),
        ("def flush(self): return self.end.commit_log_offset", "flush returned no cursor: dispatcher=wrong returned="),
        ("def flush(self): return Cursor(self.end.store_id, 1, -1, 0)", "flush returned no cursor: dispatcher=wrong"),
        ("def flush(self): return Cursor('0' * 32, 1, 0, 0)", "the durable cursor belongs to another store"),
        ("def dispatch(self, batch): raise RebuildNeeded", "asks for a rebuild right after a rebuild"),
        ("def start(self): raise RebuildNeeded", "asks for a rebuild right after a rebuild"),
    ],
)
def test_what_a_dispatcher_gets_wrong_is_said_and_ends(log, plugins, context, inline, method, error):
    """It is retried a few times, with pauses; the error names the method, and no loop spins."""
    plugins.add("wrong", source=WRONG.replace("METHOD", method))
    settings = {"dispatcher_restart_count_max": 1, "dispatcher_backoff_min": 1, "dispatcher_flush_interval": 10}
    log.put(3)
    group = inline(context("wrong", **settings))
    while group.status()[0].state != "FATAL":
        wait_for_change(group)
    assert error in group.status()[0].error


def test_any_reason_can_be_written_down(log, plugins, context, inline):
    """A reason that is not text, or invalid text, does not stop later records."""
    method = "def dispatch(self, batch):\n"
    method += "        for request, reason in zip(batch, (None, 'caf\\udce9', ValueError('no'))):\n"
    method += "            self.context.reject(request, reason)\n        self.end = batch.end"
    plugins.add("wrong", source=WRONG.replace("METHOD", method))
    log.put(3)
    group = inline(context("wrong"))
    group.wait_for("wrong", log.end, TIMEOUT)
    assert [letter.reason for letter in DeadLetters(log.store_directory, "wrong").lines.read()] == [
        "None",
        "caf\\udce9",
        "no",
    ]
