"""The process group: dispatchers in their own processes, with real kills."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading

import pytest

import reput
from process.conftest import Running
from process.owner.group_processes import TIMEOUT, group_log
from reput.errors import ConfigError, DispatcherError, RingError, WaitTimeout
from reput.process.control.control_socket import (
    abstract_address,
    connect_observer,
    group_status,
    request,
)
from reput.process.group.group_place import place_path, read_place
from reput.process.owner.process_group import ProcessGroup

pytestmark = pytest.mark.processes


def test_what_is_put_is_dispatched_in_another_process(log, plugins, context, processes, saved):
    """Records come over the ring, progress comes back, and finally everything is durable."""
    plugins.add("probe")
    log.put(20)
    running = processes(context("probe"))
    running.wait_for_state("probe", "RUNNING")
    for _ in range(10):
        end = log.put(3)
        running.group.wait_for("probe", end, TIMEOUT)
    row = running.row("probe")
    assert (row.lag_bytes, row.lag_messages, row.lapped_count, row.error) == (0, 0, 0, None)
    assert row.pid not in (None, os.getpid())
    assert row.counters == {"seen": 50}
    running.stop()
    assert saved("probe")["offsets"] == log.offsets


def test_the_group_outlives_the_thread_that_started_it(log, plugins, context, processes):
    """Parent-death signals come when a thread ends, so they are not used to watch the owner."""
    plugins.add("probe")
    started = []
    thread = threading.Thread(target=lambda: started.append(processes(context("probe"))))
    thread.start()
    thread.join()
    (running,) = started
    for _ in range(3):
        running.group.wait_for("probe", log.put(5), TIMEOUT)
    assert running.group.restart_count == 0
    assert running.row("probe").restart_count == 0


def test_several_dispatchers_of_one_plugin_are_told_apart_by_their_names(
    log, plugins, context, processes, saved, events
):
    """Each one has its own rows, counters, folders, dead letters, order, commands and options."""
    plugins.add("sink")
    plugins.add("late", 'reads="appended", after=("orders_hook",)')
    options = {
        "orders_hook": {"plugin": "sink", "reject_at": 0},
        "audit_hook": {"plugin": "sink"},
        "spare_hook": {"plugin": "sink", "say": "here I am"},
    }
    running = processes(context("orders_hook", "audit_hook", "late", options=options))
    end = log.put(20)
    for name in ("orders_hook", "audit_hook", "late"):
        running.group.wait_for(name, end, TIMEOUT)
    rows = {row.name: row for row in running.group.status()}
    assert {name: row.plugin for name, row in rows.items()} == {
        "orders_hook": "sink",
        "audit_hook": "sink",
        "late": "late",
    }
    assert [row.rejected_count for row in rows.values()] == [1, 0, 0]
    assert rows["orders_hook"].counters == rows["audit_hook"].counters == {"seen": 20}
    request(log.store_directory, "pause", "orders_hook")
    running.wait_for_state("orders_hook", "PAUSED")
    running.group.wait_for("audit_hook", log.put(5), TIMEOUT)
    assert running.row("late").progress == end
    request(log.store_directory, "attach", "spare_hook")
    # The answer of the socket may overtake what the supervisor tells the program.
    running.wait_until(lambda: "spare_hook" in running.group.members)
    running.group.wait_for("spare_hook", log.end, TIMEOUT)
    running.wait_until(lambda: "here I am" in group_log(log))
    # The next supervisor also knows what was attached, and of which plugin.
    os.kill(running.group.process.pid, signal.SIGKILL)
    running.wait_until(lambda: running.group.restart_count == 1 and running.row("spare_hook").state == "RUNNING")
    running.group.wait_for("spare_hook", log.put(1), TIMEOUT)
    request(log.store_directory, "resume", "orders_hook")
    running.group.wait_for("late", log.end, TIMEOUT)
    assert [row.view for row in running.group.rebuild(["audit_hook"])] == ["audit_hook"]
    running.stop()
    for name in ("orders_hook", "audit_hook", "spare_hook"):
        assert saved(name)["offsets"] == log.offsets
    assert not (log.store_directory / "reput/views/sink").exists()
    assert (log.store_directory / "reput/dead_letters/orders_hook.jsonl").exists()


def test_a_second_dispatcher_of_a_view_in_the_stores_root_is_refused(log, context, processes):
    """Both would write to the same files."""
    with pytest.raises(ConfigError, match="dispatcher=second plugin=index store_folders=index") as refused:
        processes(context("second", options={"second": {"plugin": "index"}}))
    assert refused.value.advice == "Enable index itself."


def test_a_successor_waits_parked_for_its_predecessor(log, plugins, context, processes, events):
    """The barrier holds until the predecessor publishes progress."""
    plugins.add("first")
    plugins.add("second", 'reads="appended", after=("first",)')
    running = processes(context("first", "second"))
    running.group.wait_for("second", log.put(1), TIMEOUT)
    os.kill(running.row("first").pid, signal.SIGSTOP)
    end = log.put(5)
    with pytest.raises(WaitTimeout):
        running.group.wait_for("second", end, 0.3)
    os.kill(running.row("first").pid, signal.SIGCONT)
    running.group.wait_for("second", end, TIMEOUT)
    assert running.memory.view(running.group.members["second"].slot).backstop_count == 0


@pytest.mark.parametrize("after_failed", ["wait", "proceed"])
def test_a_paused_predecessor_is_waited_for_or_passed_over(log, plugins, context, processes, after_failed):
    """As the successor declares."""
    plugins.add("first")
    plugins.add("second", f'reads="appended", after=("first",), after_failed="{after_failed}"')
    running = processes(context("first", "second"))
    running.group.wait_for("second", log.put(1), TIMEOUT)
    running.group.request("pause", "first")
    running.wait_for_state("first", "PAUSED")
    end = log.put(5)
    if after_failed == "wait":
        with pytest.raises(WaitTimeout):
            running.group.wait_for("second", end, 0.3)
        running.group.request("resume", "first")
    running.group.wait_for("second", end, TIMEOUT)


def test_a_durable_reader_is_woken_by_the_flusher(log, plugins, context, processes):
    """Records that are not on disk yet are held back."""
    plugins.add("probe", 'reads="durable"')
    running = processes(context("probe"))
    end = log.put(5)
    with pytest.raises(WaitTimeout):
        running.group.wait_for("probe", 1, 0.3)
    running.wait_until(lambda: running.writer.durable_awaited is not None)
    log.publisher.durable(end)
    running.group.wait_for("probe", end, TIMEOUT)


def test_a_durable_reader_has_a_lone_put_forced(plugins, tmp_path):
    """It does not wait for the flusher's interval, which may be long; and no thread polls for waiting dispatchers."""
    plugins.add("probe", 'reads="durable"')
    with reput.open(tmp_path / "store", dispatchers=["probe"], flush_interval_commit_log=3_600_000) as store:
        for _ in range(5):
            end = store.put(reput.Message("orders", b"x")).next_commit_log_offset
            store.wait_for("probe", end, TIMEOUT)
        assert store.status().dispatchers[0].backstop_count == 0


def test_more_dispatchers_than_there_is_room_for_are_refused_by_name(log, plugins, context, processes):
    """With the setting that raises the limit."""
    plugins.add("first")
    plugins.add("second")
    running = Running(log, context("first", "second"), slot_count=1)
    with pytest.raises(ConfigError, match="dispatcher=second dispatcher_count_max=1") as refused:
        running.group.start()
    assert "raise dispatcher_count_max" in refused.value.advice
    running.writer.close()
    running.memory.close()


def test_a_lapped_dispatcher_catches_up_from_the_log(log, plugins, context, processes, saved):
    """Stopped by a signal while the ring wraps around, it loses nothing, and reports that it was lapped."""
    plugins.add("probe")
    running = processes(context("probe"), capacity=4096)
    running.group.wait_for("probe", log.put(1), TIMEOUT)
    os.kill(running.row("probe").pid, signal.SIGSTOP)
    for _ in range(200):
        end = log.put(5)
    os.kill(running.row("probe").pid, signal.SIGCONT)
    running.group.wait_for("probe", end, TIMEOUT)
    assert running.row("probe").lapped_count > 0
    running.stop()
    assert saved("probe")["offsets"] == log.offsets


def test_a_stopped_dispatcher_silences_nobody(log, plugins, context, processes):
    """Each dispatcher has its own log pipe."""
    plugins.add("quiet")
    plugins.add("loud")
    running = processes(context("quiet", "loud", options={"loud": {"say": "here I am"}}))
    running.wait_for_state("loud", "RUNNING")
    running.wait_for_state("quiet", "RUNNING")
    os.kill(running.row("quiet").pid, signal.SIGSTOP)
    before = group_log(log).count("here I am")
    running.group.request("restart", "loud")
    running.wait_until(lambda: group_log(log).count("here I am") > before)
    os.kill(running.row("quiet").pid, signal.SIGCONT)


def test_what_a_plugin_prints_comes_out_in_the_log_within_bounds(log, plugins, context, processes):
    """Unstructured output is marked, counted, and limited."""
    plugins.add("probe")
    running = processes(context("probe", options={"probe": {"shout": 5000}}))
    running.group.wait_for("probe", log.put(1), TIMEOUT)
    running.stop()
    text = group_log(log)
    assert "printed: shouting" in text
    assert text.count("printed: shouting") < 2000
    assert "lines_lost=" in text


def test_logs_of_forked_processes_are_merged(log, plugins, context, processes):
    """Output of a plugin's own child appears with the dispatcher's name."""
    plugins.add("probe")
    running = processes(context("probe", options={"probe": {"fork": True}}))
    running.wait_for_state("probe", "RUNNING")
    running.wait_until(lambda: "said by a forked process" in group_log(log))


def test_a_second_process_asks_and_commands_over_the_control_socket(log, plugins, context, processes):
    """Status, pause, resume and restart, for the owner of the store only."""
    plugins.add("probe")
    running = processes(context("probe"))
    running.group.wait_for("probe", log.put(3), TIMEOUT)
    status = group_status(log.store_directory)
    assert status.writer.pid == os.getpid()
    assert status.writer.appended == log.end
    assert [(row.name, row.state, row.lag_bytes) for row in status.dispatchers] == [("probe", "RUNNING", 0)]
    before = running.row("probe").pid
    request(log.store_directory, "restart", "probe")
    running.wait_until(lambda: running.row("probe").pid not in (None, before))
    request(log.store_directory, "pause", "probe")
    running.wait_for_state("probe", "PAUSED")
    assert running.row("probe").pid is None
    end = log.put(3)
    request(log.store_directory, "resume", "probe")
    running.group.wait_for("probe", end, TIMEOUT)
    with pytest.raises(DispatcherError, match="dispatcher=nobody"):
        request(log.store_directory, "pause", "nobody")
    running.stop()
    assert read_place(log.store_directory) is None
    assert group_status(log.store_directory) is None


def test_a_second_process_sees_progress_but_cannot_write(log, plugins, context, processes):
    """Ring and cells are passed on read-only."""
    plugins.add("probe")
    running = processes(context("probe"))
    end = log.put(3)
    running.group.wait_for("probe", end, TIMEOUT)
    observed = connect_observer(log.store_directory)
    assert observed.progress("probe") == end
    assert observed.progress("nobody") is None
    with pytest.raises(RingError, match="observer"):
        observed.memory.open_cell(0)
    observed.memory.close()


def test_plugins_have_a_lower_priority(plugins, tmp_path):
    """By the amount in the settings. Views for RocketMQ's readers keep the writer's priority."""
    plugins.add("probe")
    own = os.getpriority(os.PRIO_PROCESS, 0)
    enabled = ["consume_queue", "index", "probe"]
    with reput.open(tmp_path / "store", dispatchers=enabled, dispatcher_nice=3) as store:
        store.wait_for("probe", 0, TIMEOUT)
        pids = {row.name: row.pid for row in store.status().dispatchers}
        priorities = {name: os.getpriority(os.PRIO_PROCESS, pid) for name, pid in pids.items()}
    assert priorities == {"consume_queue": own, "index": own, "probe": min(own + 3, 19)}


def test_the_groups_log_is_json_lines_where_that_is_set(plugins, tmp_path):
    """Every line of every process, with time, level, process and dispatcher."""
    plugins.add("probe")
    options = {"dispatchers.probe.say": "here I am"}
    with reput.open(tmp_path / "store", dispatchers=["probe"], dispatcher_log_format="json", **options) as store:
        store.wait_for("probe", store.put(reput.Message("orders", b"one")).next_commit_log_offset, TIMEOUT)
    lines = (tmp_path / "store" / "reput" / "log" / "group.log").read_text().splitlines()
    (said,) = [row for row in map(json.loads, lines) if row["message"] == "here I am"]
    assert (said["dispatcher"], said["level"]) == ("probe", "WARNING")
    assert {"time", "process"} <= said.keys()


def test_rubbish_on_the_control_socket_harms_nobody(log, plugins, context, processes):
    """A client that sends garbage, or vanishes, is answered or dropped."""
    plugins.add("probe")
    running = processes(context("probe"))
    for line in (b"rubbish\n", b'{"verb":"explode"}\n', b"\xff" * 5000, b""):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.connect(abstract_address(read_place(log.store_directory).socket))
        client.sendall(line)
        client.close()
    running.group.wait_for("probe", log.put(1), TIMEOUT)
    assert running.group.restart_count == 0


def test_without_a_control_socket_the_group_runs_and_says_so(log, plugins, context, processes):
    """It only cannot be asked by other processes."""
    plugins.add("probe")
    place_path(log.store_directory).mkdir()
    running = processes(context("probe"))
    running.group.wait_for("probe", log.put(1), TIMEOUT)
    assert "there is no control socket" in group_log(log)


def test_two_groups_do_not_work_on_one_view(log, plugins, context, processes, monkeypatch):
    """The second one is refused while a process of the first lives."""
    plugins.add("probe")
    running = processes(context("probe"))
    running.group.wait_for("probe", log.put(1), TIMEOUT)
    second = ProcessGroup(context("probe"), running.memory, lock_timeout=0.2)
    with pytest.raises(DispatcherError, match="another process group"):
        second.start()


def test_tasks_wait_for_progress(log, plugins, context, processes, inline):
    """In an event loop, with either kind of group."""
    plugins.add("probe")
    running = processes(context("probe"))
    end = log.put(5)
    asyncio.run(running.group.await_for("probe", end, TIMEOUT))
    with pytest.raises(WaitTimeout):
        asyncio.run(running.group.await_for("probe", end + 1, 0.05))
    running.stop()
    group = inline(context("probe"))
    asyncio.run(group.await_for("probe", end, TIMEOUT))
