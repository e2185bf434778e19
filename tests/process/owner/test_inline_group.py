"""The loops of the dispatchers, on one thread of the program."""

from __future__ import annotations

import threading

import pytest

from delivering import wait_until
from process.owner.inline_groups import TIMEOUT, state_of, wait_for_change, wait_for_state
from reput.errors import ConfigError, DispatcherError, WaitTimeout
from reput.process.dispatcher.states import State, StopMode
from reput.process.owner.inline_group import InlineGroup
from reput.process.views.dead_letters import DeadLetters


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
