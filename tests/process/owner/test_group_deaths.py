"""Dispatchers and supervisors that die, hang or grow: what follows from it, with real kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import reput
from process.owner.group_processes import TIMEOUT, await_end, group_log, named_memory
from process.probe_plugin import PROBE
from reput.errors import DispatcherError
from reput.process.dispatcher.states import Phase, State
from reput.process.plugin.catalogue import select_dispatchers
from reput.process.supervisor.dispatcher_group import DispatcherGroup
from reput.process.supervisor.member import Member
from reput.ring import RingMemory

pytestmark = pytest.mark.processes


def test_a_killed_dispatcher_starts_again_and_catches_up(log, plugins, context, processes, saved):
    """Repeated kill -9: nothing is lost and nothing is counted twice."""
    plugins.add("probe")
    running = processes(context("probe"))
    for number in range(3):
        running.group.wait_for("probe", log.put(10), TIMEOUT)
        victim = running.row("probe").pid
        os.kill(victim, signal.SIGKILL)
        running.group.wait_for("probe", log.put(10), TIMEOUT)
        running.wait_until(lambda victim=victim: running.row("probe").pid not in (None, victim))
        assert running.row("probe").restart_count == number + 1
    running.stop()
    assert saved("probe")["offsets"] == log.offsets


def test_a_killed_supervisor_is_replaced(log, plugins, context, processes, saved):
    """Its dispatchers die with it; puts continue; the next supervisor takes over ring and cells and catches up."""
    plugins.add("probe")
    running = processes(context("probe"))
    running.group.wait_for("probe", log.put(10), TIMEOUT)
    dispatcher = running.row("probe").pid
    os.kill(running.group.process.pid, signal.SIGKILL)
    end = log.put(10)
    await_end(dispatcher)
    running.wait_until(lambda: running.row("probe").pid not in (None, dispatcher))
    running.group.wait_for("probe", end, TIMEOUT)
    assert running.group.restart_count == 1
    running.stop()
    assert saved("probe")["offsets"] == log.offsets


def test_nothing_is_left_of_a_killed_owner(plugins, tmp_path):
    """All processes end, no memory has a name, and the next opening has every acknowledged record in its view."""
    plugins.add("probe")
    store = tmp_path / "killed"
    program = str(Path(__file__).parents[1] / "owner_program.py")
    owner = subprocess.Popen(
        [sys.executable, program, str(store), str(plugins.folder), "probe"], stdout=subprocess.PIPE, text=True
    )
    try:
        group = json.loads(owner.stdout.readline())
        for _ in range(20):
            acknowledged = json.loads(owner.stdout.readline())["acknowledged"]
        pids = (owner.pid, group["supervisor"], *group["dispatchers"])
        assert not {name for pid in pids for name in named_memory(pid) if not name.startswith(str(tmp_path))}
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    for pid in (group["supervisor"], *group["dispatchers"]):
        await_end(pid)
    with reput.open(store, dispatchers=["probe"]) as opened:
        assert opened.appended >= acknowledged
        opened.wait_for("probe", opened.appended, TIMEOUT)
        offsets = [record.commit_log_offset for record in opened.records()]
    assert json.loads((store / "reput/views/probe/probe.json").read_text())["offsets"] == offsets


def test_a_crash_loop_ends_in_fatal_and_is_left_by_hand(log, plugins, context, processes, saved):
    """After a set number of tries without progress the restarts end, until an operator resumes it."""
    plugins.add("probe")
    plugins.add("other")
    go = log.store_directory / "go"
    options = {"probe": {"kill_at": 0, "crash_until": str(go)}}
    settings = {"dispatcher_restart_count_max": 2, "dispatcher_backoff_min": 1}
    running = processes(context("probe", "other", options=options, **settings))
    end = log.put(5)
    running.wait_for_state("probe", "FATAL")
    row = running.row("probe")
    assert row.restart_count == 2
    assert "signal=SIGKILL" in row.error
    with pytest.raises(DispatcherError, match="state=FATAL"):
        running.group.wait_for("probe", end, TIMEOUT)
    running.group.wait_for("other", end, TIMEOUT)
    go.touch()
    running.group.request("resume", "probe")
    running.group.wait_for("probe", end, TIMEOUT)
    running.stop()
    assert saved("probe")["offsets"] == log.offsets


def test_a_process_that_ends_itself_is_tried_again_whatever_its_status(log, plugins, context, processes):
    """It is not a refusal, and the status shows its last exit, not the first one."""
    statuses = [1, 3, 4, 0]
    plugins.add(
        "leaver",
        source=PROBE.replace("DESCRIPTION", 'reads="appended"').replace(
            "    def dispatch(self, batch):\n",
            "    def dispatch(self, batch):\n"
            "        left = self.context.directory / 'left'\n"
            "        count = left.stat().st_size if left.exists() else 0\n"
            f"        if count < {len(statuses)}:\n"
            "            left.write_bytes(bytes(count + 1))\n"
            f"            os._exit({statuses}[count])\n"
            "        if count < 9: raise SystemExit(left.write_bytes(bytes(count + 1)))\n",
        ),
    )
    running = processes(context("leaver", dispatcher_restart_count_max=4, dispatcher_backoff_max=50))
    log.put(1)
    running.wait_for_state("leaver", "FATAL")
    assert running.row("leaver").restart_count == len(statuses)
    assert "SystemExit" in running.row("leaver").error
    assert [f"exit_status={status}" in group_log(log) for status in statuses] == [True] * len(statuses)


def test_an_exception_is_reported_with_plugin_version_and_offset(log, plugins, context, processes):
    """The log tells an operator what failed at which offset."""
    plugins.add("probe")
    log.put(3)
    options = {"probe": {"crash_at": log.offsets[1]}}
    running = processes(context("probe", options=options, dispatcher_restart_count_max=1, dispatcher_backoff_min=1))
    running.wait_for_state("probe", "FATAL")
    assert f"ValueError: crash at {log.offsets[1]}" in running.row("probe").error
    running.stop()
    text = group_log(log)
    assert "dispatcher=probe distribution=probes version=1.0" in text
    assert "@0 dispatcher failed" in text
    assert f"ValueError: crash at {log.offsets[1]}" in text


def test_a_plugin_that_cannot_be_imported_is_broken(log, plugins, context, processes):
    """The traceback is shown, the others run."""
    plugins.add("bad", source="import no_such_module")
    plugins.add("dies", source="import os; os._exit(7)")
    plugins.add("old", 'reads="appended", api_version=99')
    plugins.add("unmarked", source="def reput_create_dispatcher(context):\n    raise NotImplementedError")
    plugins.add("probe")
    running = processes(context("bad", "dies", "old", "unmarked", "probe"))
    running.group.wait_for("probe", log.put(1), TIMEOUT)
    rows = {row.name: row for row in running.group.status()}
    assert [rows[name].state for name in ("bad", "dies", "old", "unmarked")] == ["BROKEN"] * 4
    assert "No module named 'no_such_module'" in rows["bad"].error
    assert "exit_status=7" in rows["dies"].error
    assert "api_version=99" in rows["old"].error
    assert "the plugin has no hook that creates its dispatcher: dispatcher=unmarked" in rows["unmarked"].error


# Typical side effects of imported libraries, and worse.
UNRULY = """
import os, signal, sys, threading
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGUSR1, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
threading.Thread(target=threading.Event().wait).start()
print("loaded", "\\x00\\xff" * 100)
os.write(2, b"\\xff\\xfe no text")
sys.stdout = None
if os.fork() == 0:
    os.setsid()
"""


def test_what_an_import_does_to_its_process_is_its_own_affair(log, plugins, context, processes, saved, events):
    """Handlers, blocked signals, threads, and a fork whose child returns: it can be paused and drained as one."""
    plugins.add("probe", source=UNRULY + PROBE.replace("DESCRIPTION", 'reads="appended"'))
    running = processes(context("probe"))
    running.group.wait_for("probe", log.put(10), TIMEOUT)
    running.group.request("pause", "probe")
    running.wait_for_state("probe", "PAUSED")
    assert running.row("probe").error is None
    running.group.request("resume", "probe")
    running.group.wait_for("probe", log.put(10), TIMEOUT)
    running.stop()
    assert saved("probe")["offsets"] == log.offsets
    assert len(events("probe", "start")) == 2
    assert "dispatcher ended while stopping" not in group_log(log)


@pytest.mark.parametrize(
    ("phase", "option", "error"),
    [
        ("dispatch", {"hang_at": 0}, "phase=DISPATCH"),
        ("flush", {"hang_in_flush": True}, "phase=FLUSH"),
        ("flush", {"hang_beside": True}, "a flush exceeded its time limit and is not trusted"),
    ],
)
def test_what_hangs_is_ended_and_started_again(log, plugins, context, processes, phase, option, error):
    """Each phase has a time limit, including a flush that runs beside the batches."""
    plugins.add("probe")
    running = processes(context("probe", options={"probe": option}, **{f"dispatcher_{phase}_time_max": 300}))
    log.put(1)
    running.wait_until(lambda: running.row("probe").restart_count >= 2)
    running.wait_until(lambda: error in (running.row("probe").error or ""))
    cursor = running.group.cell("probe").durable_cursor
    assert cursor is None or cursor.commit_log_offset == 0


def test_a_slow_plugin_that_is_far_behind_catches_up_within_a_small_time_limit(log, plugins, context, processes):
    """28,000 messages at 0.3 ms each, at once, exceed the limit; batches are cut so that it is never reached.

    A copy declares batches of a thousand; another one still lags when that many come over the ring.
    """
    names = [plugins.add("slow"), plugins.add("declaring", 'reads="appended", batch_record_count_max=1000')]
    for _ in range(14):
        log.put(2_000)
    options = {name: {"seconds_per_record": 0.0003} for name in names}
    running = processes(context(*names, options=options, dispatcher_dispatch_time_max=2000))
    for name in names:
        running.group.wait_for(name, log.put(2_000), TIMEOUT)
        row = running.row(name)
        assert (row.state, row.restart_count) == ("RUNNING", 0)
    assert running.group.cell("declaring").batch_count >= 30


def test_after_a_kill_by_time_limit_batches_are_smaller(log, plugins, context, processes, saved):
    """Some records take a hundred times as long: the first batch is too large, the next ones are not."""
    plugins.add("slow")
    log.put(300)
    options = {"slow": {"seconds_per_record": 0.03}}
    running = processes(context("slow", options=options, dispatcher_dispatch_time_max=3000))
    running.group.wait_for("slow", log.put(1), TIMEOUT)
    assert running.row("slow").restart_count >= 1
    running.stop()
    assert saved("slow")["offsets"] == log.offsets


def test_one_that_is_killed_is_stopping_until_it_has_ended(log, context, plugins):
    """A process that waits for a disk does not die before the disk answers; here its parent does not reap it."""
    plugins.add("probe")
    memory = RingMemory.create(1 << 16)
    group = DispatcherGroup.__new__(DispatcherGroup)
    group.memory = memory
    group.merger = SimpleNamespace(say=lambda *_, **__: None)
    group.unwatch_process = lambda member: None
    cell = memory.open_cell(0)
    cell.clear("probe")
    (entry,) = select_dispatchers(["probe"], {})
    member = Member(entry, cell, context("probe", dispatcher_dispatch_time_max=1).settings, {})
    group.members = {"probe": member}
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]) as process:
        member.show_state(State.RUNNING)
        member.pid, member.pidfd = process.pid, os.pidfd_open(process.pid)
        cell.set_phase(Phase.DISPATCH)
        cell.beat()
        while not member.killed_for:
            group.enforce_time_limits()
        assert (member.state, cell.state) == (State.STOPPING, State.STOPPING)
        assert cell.error == (
            f"dispatcher was killed and has not ended yet: dispatcher=probe pid={process.pid} "
            "phase exceeded its time limit: phase=DISPATCH"
        )
        group.on_end(member)
        process.returncode = -signal.SIGKILL
    assert member.state is State.BACKOFF
    assert "phase=DISPATCH" in cell.error
    memory.close()


def test_a_sign_of_life_renews_the_time_limit(log, plugins, context, processes):
    """Five seconds of work with calls of `alive` survive a limit of three, which gives a busy machine time to begin."""
    plugins.add("probe")
    running = processes(context("probe", options={"probe": {"alive_at": 0}}, dispatcher_dispatch_time_max=3000))
    running.group.wait_for("probe", log.put(1), TIMEOUT)
    assert running.row("probe").restart_count == 0


def test_a_dispatcher_that_takes_too_much_memory_is_started_anew(log, plugins, context, processes, saved, events):
    """With the reason, and without duplicates: it flushes before. Its work counts as progress."""
    plugins.add("probe")
    options = {"probe": {"leak": 8 << 20}}
    running = processes(context("probe", options=options, dispatcher_memory_max=64 << 20))
    running.wait_for_state("probe", "RUNNING")
    while running.row("probe").restart_count == 0:
        running.group.wait_for("probe", log.put(1), TIMEOUT)
    running.group.wait_for("probe", log.put(1), TIMEOUT)
    assert "memory exceeds its limit: rss_bytes=" in group_log(log)
    running.stop()
    assert saved("probe")["offsets"] == log.offsets


def test_a_store_closes_cleanly_whenever_its_supervisor_is_killed(tmp_path):
    """Right before the close, and while the next supervisor is still starting: another one drains."""
    path = tmp_path / "store"
    for killed_during_close in (False, True):
        store = reput.open(path)
        group = store._engine.group
        store.put_batch([reput.Message("orders", bytes(100), keys="k", queue_id=number % 5) for number in range(500)])
        first = group.process
        os.kill(first.pid, signal.SIGKILL)
        closing = threading.Thread(target=store.close)
        closing.start()
        pause = threading.Event()
        while killed_during_close and group.process is first:
            pause.wait(0.001)
        if killed_during_close:
            # Unless it has already drained the group and ended.
            group.process.kill()
        closing.join(TIMEOUT)
        assert not closing.is_alive()
        assert not (path / "abort").exists()
    with reput.open(path, read_only=True) as reader:
        assert reader.queue_range("orders", 4) == (0, 200)


def test_what_is_asked_for_while_there_is_no_supervisor_is_refused(plugins, context, processes, monkeypatch):
    """They would never be answered, and a rebuild would wait for ever."""
    plugins.add("probe")
    running = processes(context("probe"))
    ended, go_on = threading.Event(), threading.Event()
    start_again = running.group.start_again

    def start_later():
        ended.set()
        assert go_on.wait(TIMEOUT)
        return start_again()

    monkeypatch.setattr(running.group, "start_again", start_later)
    os.kill(running.group.process.pid, signal.SIGKILL)
    assert ended.wait(TIMEOUT)
    with pytest.raises(DispatcherError, match="the supervisor"):
        running.group.rebuild([])
    go_on.set()
