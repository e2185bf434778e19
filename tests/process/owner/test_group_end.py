"""The end of a process group: drains, signals, forks."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading

import msgspec
import pytest

import reput
from process.conftest import Running
from process.owner.group_processes import TIMEOUT, Answer, is_gone
from process.probe_plugin import PROBE
from reput.process.control.control_socket import (
    abstract_address,
    owner_statistics,
    request,
)
from reput.process.group.group_place import read_place

pytestmark = pytest.mark.processes


def test_a_store_closes_after_a_view_has_left_the_group(tmp_path):
    """RocketMQ would trust an outdated view, so the store does not count as closed cleanly."""
    with reput.open(tmp_path / "store") as store:
        request(tmp_path / "store", "detach", "index")
        pause = threading.Event()
        while "index" in store._engine.group.members:
            pause.wait(0.01)
        store.put(reput.Message("orders", b"one"))
    assert (tmp_path / "store" / "abort").exists()
    with reput.open(tmp_path / "store"):
        pass
    assert not (tmp_path / "store" / "abort").exists()


def test_a_drain_ends_where_no_supervisor_can_be_started(log, plugins, context, processes, monkeypatch):
    """After a few tries the group is given up; the views continue at the next start."""
    plugins.add("probe")
    running = processes(context("probe"))
    running.group.wait_for("probe", log.put(10), TIMEOUT)
    monkeypatch.setattr("reput.process.owner.process_group.DRAIN_STARTS_MAX", 1)
    monkeypatch.setattr("reput.process.owner.supervisor_process.role_command", lambda *arguments, **_: ["false"])
    os.kill(running.group.process.pid, signal.SIGKILL)
    running.stop()
    assert running.group.ended
    assert not running.group.drained


def test_a_large_answer_that_nobody_takes_delays_no_drain(log, plugins, context, processes, saved):
    """The owner sends the rest of an answer later, while its client reads nothing."""
    plugins.add("probe")
    running = processes(context("probe"))
    answered = threading.Event()

    def answer():
        answered.set()
        return Answer()

    running.group.on_statistics = answer
    client = socket.socket(socket.AF_UNIX)
    client.connect(abstract_address(read_place(log.store_directory).socket))
    client.sendall(b'{"verb":"statistics"}\n')
    assert answered.wait(TIMEOUT)
    log.put(5)
    running.group.drain_and_stop(TIMEOUT)
    assert running.group.drained
    assert saved("probe")["offsets"] == log.offsets
    client.close()


def test_a_large_answer_comes_whole(log, plugins, context, processes):
    """However many clients ask at a time, the owner answers once."""
    plugins.add("probe")
    running = processes(context("probe"))
    running.group.on_statistics = Answer
    assert msgspec.json.decode(owner_statistics(log.store_directory, TIMEOUT), type=Answer) == Answer()


def test_a_drain_has_an_end(log, plugins, context, processes, events):
    """A dispatcher that runs without finishing is killed, and continues at the next start."""
    plugins.add("probe")
    running = processes(context("probe", options={"probe": {"hang_at": 0}}, dispatcher_dispatch_time_max=3_600_000))
    log.put(1)
    running.wait_until(lambda: events("probe", "hang"))
    pid = running.row("probe").pid
    supervisor = running.group.process.pid
    running.group.drain_and_stop(0.01)
    running.wait_until(lambda: is_gone(pid))
    assert is_gone(supervisor)
    assert events("probe", "dispatch") == []
    running = processes(context("probe"))
    running.group.wait_for("probe", log.end, TIMEOUT)


def test_what_was_taken_in_is_flushed_when_the_time_for_a_drain_is_up(log, plugins, context, processes, saved, events):
    """The view is a prefix of the log, and none of that work must be repeated."""
    plugins.add("probe")
    running = processes(context("probe", options={"probe": {"seconds_per_record": 0.005}}))
    for _ in range(400):
        log.put(1)
    running.wait_until(lambda: events("probe", "dispatch"))
    running.group.drain_and_stop(0.0)
    assert running.group.drained
    taken = saved("probe")["offsets"]
    assert 0 < len(taken) <= 400
    assert taken == log.offsets[: len(taken)]


def test_ctrl_c_in_a_drain_leaves_no_group(log, plugins, context, processes, events, monkeypatch):
    """The next opening need not wait."""
    plugins.add("probe")
    running = processes(context("probe", options={"probe": {"hang_at": 0}}))
    log.put(1)
    running.wait_until(lambda: events("probe", "hang"))
    pid = running.row("probe").pid

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(running.group, "join", interrupt)
    with pytest.raises(KeyboardInterrupt):
        running.group.drain_and_stop()
    running.wait_until(lambda: is_gone(pid))


def test_sigterm_drains_and_ends_the_group(log, plugins, context, processes, saved):
    """Every published record is taken in and durable; no other supervisor is started."""
    plugins.add("first")
    plugins.add("second", 'reads="appended", after=("first",)')
    running = processes(context("second", "first"))
    log.put(50)
    os.kill(running.group.process.pid, signal.SIGTERM)
    running.wait_until(lambda: running.group.ended)
    assert running.group.restart_count == 0
    assert saved("first")["offsets"] == saved("second")["offsets"] == log.offsets
    assert {row.state for row in running.group.status()} == {"STOPPED"}


@pytest.mark.parametrize("how", ["pauses", "drains"])
def test_a_dispatcher_that_a_signal_stopped_ends_when_it_is_told_to(log, plugins, context, processes, saved, how):
    """The close need not wait for its time limit, and it takes in the records that came meanwhile."""
    plugins.add("probe")
    running = processes(context("probe"))
    running.group.wait_for("probe", log.put(5), TIMEOUT)
    os.kill(running.row("probe").pid, signal.SIGSTOP)
    log.put(5)
    if how == "pauses":
        running.group.request("pause", "probe")
        running.wait_for_state("probe", "PAUSED")
        running.group.request("resume", "probe")
    running.stop()
    assert saved("probe")["offsets"] == log.offsets


@pytest.mark.parametrize("moment", ["at once", "while plugins are described"])
def test_sigterm_drains_a_group_that_is_starting(log, plugins, context, saved, tmp_path, moment):
    """The dispatchers start, take in the existing records, and end; the owner sees a drained group."""
    began, go = tmp_path / "began", tmp_path / "go"
    wait = f"import pathlib, time\npathlib.Path({str(began)!r}).touch()\n"
    wait += f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.005)\n"
    plugins.add("probe", source=wait + PROBE.replace("DESCRIPTION", 'reads="appended"'))
    log.put(20)
    running = Running(log, context("probe"))
    group = running.group
    starting = threading.Thread(target=group.start)
    starting.start()
    try:
        running.wait_until(lambda: group.process if moment == "at once" else began.exists())
        os.kill(group.process.pid, signal.SIGTERM)
        go.touch()
        starting.join(TIMEOUT)
        running.wait_until(lambda: group.ended)
        assert (group.drained, group.restart_count, group.exit_status) == (True, 0, 0)
        assert saved("probe")["offsets"] == log.offsets
    finally:
        group.kill()
        running.writer.close()
        running.memory.close()


def test_nothing_is_left_in_the_owner(log, plugins, context, processes):
    """No descriptor, no thread, no child."""
    plugins.add("probe")
    # Objects dropped by other tests are closed eventually, which must not happen in between.
    gc.collect()
    descriptors, threads = set(os.listdir("/proc/self/fd")), set(threading.enumerate())
    running = processes(context("probe"))
    running.group.wait_for("probe", log.put(1), TIMEOUT)
    supervisor = running.group.process.pid
    running.stop()
    assert set(os.listdir("/proc/self/fd")) <= descriptors
    assert set(threading.enumerate()) <= threads
    assert is_gone(supervisor)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_of_the_owner_has_no_group(log, plugins, context, processes):
    """It forgets the group and ends; the parent's group continues."""
    plugins.add("probe")
    running = processes(context("probe"))
    running.group.wait_for("probe", log.put(1), TIMEOUT)
    child = os.fork()
    if child == 0:
        running.group.forget()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    running.group.wait_for("probe", log.put(1), TIMEOUT)
    assert running.group.restart_count == 0


def test_a_dispatcher_that_waits_for_its_restart_is_drained_all_the_same(log, plugins, context, processes, saved):
    """A store that is closed between two tries has no outdated view."""
    plugins.add("probe")
    go = log.store_directory / "go"
    options = {"probe": {"crash_at": 0, "crash_until": str(go)}}
    running = processes(context("probe", options=options, dispatcher_restart_count_max=50))
    log.put(5)
    running.wait_until(lambda: running.row("probe").restart_count >= 5)
    go.touch()
    running.stop()
    assert saved("probe")["offsets"] == log.offsets
