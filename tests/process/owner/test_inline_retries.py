"""Retries and dead letters of dispatchers, inline."""

from __future__ import annotations

import base64
import json
import threading

import pytest

from process.owner.inline_groups import TIMEOUT, rejecting, wait_for_change, wait_for_state
from process.probe_plugin import PROBE
from reput.process.dispatcher.states import State
from reput.process.views.dead_letters import DeadLetters


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
    assert b"poison" in base64.b64decode(letter["record"])


def test_a_dead_letter_is_replayed_on_request(log, plugins, context, inline, events, saved):
    """The letter comes again at the view's position, and once taken in it is no longer a dead letter."""
    start = rejecting(log, plugins, context, inline)
    letters = DeadLetters(log.store_directory, "probe")
    for taken in (False, True):
        if taken:
            (log.store_directory / "go").touch()
        (letter,) = letters.request_replay()
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
    letters.requested.write_bytes(b"[")
    group = start()
    group.wait_for("probe", log.put(1), TIMEOUT)
    group.drain_and_stop()
    (row,) = group.status()
    assert (row.rejected_count, row.restart_count) == (1, 0)
    assert row.error.startswith(f"a line is not what was written: path={letters.lines.path} line=1 error=")
    assert f"path={letters.lines.path} line=1" in caplog.text
    assert f"path={letters.requested}" in caplog.text
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
    assert len(letters.request_replay()) == 5
    inline(context("probe")).drain_and_stop()
    replayed = [offsets for offsets, _ in events("probe", "replay")]
    assert [len(offsets) for offsets in replayed] == [2, 2, 1]
    assert [offset for offsets in replayed for offset in offsets] == log.offsets
    assert len(letters) == 0


def test_a_replay_that_ends_in_a_crash_is_not_tried_again(log, plugins, context, inline, events):
    """A record that crashes its dispatcher would do so at every start; the letter stays."""
    group = rejecting(log, plugins, context, inline, crash_in_replay=True)
    letters = DeadLetters(log.store_directory, "probe")
    letters.request_replay()
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
    letters.request_replay()
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
    letters.request_replay()
    start().drain_and_stop()
    assert events("probe", "replay") == []
    assert len(list(letters.lines.read())) == 1
    assert not letters.replay_is_due()
