"""The process group: dispatchers in their own processes, with real kills."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

import reput
from process.conftest import Running
from process.probe_plugin import PROBE
from reput.errors import ConfigError, DispatcherError, RingError, WaitTimeout
from reput.process.control.control_socket import (
    abstract_address,
    connect_observer,
    group_status,
    owner_statistics,
    request,
)
from reput.process.dispatcher.states import Phase, State
from reput.process.group.group_place import place_path, read_place
from reput.process.owner.process_group import ProcessGroup
from reput.process.plugin.catalogue import select_dispatchers
from reput.process.supervisor.dispatcher_group import DispatcherGroup
from reput.process.supervisor.member import Member
from reput.ring import RingMemory

TIMEOUT = 60.0

pytestmark = pytest.mark.processes


def is_gone(pid):
    """Tell whether a process has ended; a zombie counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return True


def await_end(pid):
    """Wait until a process that is not our child has ended."""
    pause = threading.Event()
    for _ in range(int(TIMEOUT / 0.005)):
        if is_gone(pid):
            return
        pause.wait(0.005)
    raise AssertionError(f"process lives: pid={pid}")


def named_memory(pid):
    """Return the files in memory that a process has open or mapped and that would outlive it."""
    opened = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        # The process runs meanwhile, and closes its files.
        with contextlib.suppress(FileNotFoundError):
            opened.add(os.readlink(link))
    mapped = {line.split(maxsplit=5)[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()}
    return {name for name in opened | mapped if name.startswith("/dev/shm/")}


def group_log(log):
    """Return the group's log."""
    return (log.store_directory / "reput" / "log" / "group.log").read_text()


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


def test_wrong_options_and_names_are_refused_in_the_owner(log, plugins, context, processes):
    """Before any dispatcher has run; the error names the wrong part."""
    plugins.add("probe")
    with pytest.raises(ConfigError, match=r"dispatchers\.probe\.limit"):
        processes(context("probe", options={"probe": {"limit": "many"}}))
    with pytest.raises(ConfigError, match=r"dispatchers\.probe\.limt"):
        processes(context("probe", options={"probe": {"limt": 1}}))
    with pytest.raises(ConfigError, match="dispatcher=prob"):
        processes(context("prob"))


def test_a_plugin_whose_import_hangs_holds_up_nobody_but_those_that_come_after_it(
    log, plugins, context, processes, saved, tmp_path
):
    """The others work, its status shows the problem, and it joins as soon as it is imported."""
    gates = {name: tmp_path / f"{name}.gate" for name in ("late", "later")}
    for name, gate in gates.items():
        source = f"import os, time\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.01)\n"
        plugins.add(name, source=source + PROBE.replace("DESCRIPTION", 'reads="appended", needs_properties=True'))
    plugins.add("probe")
    plugins.add("after", 'reads="appended", after=("late",)')
    running = processes(context("late", "later", "probe", "after"))
    end = log.put(5)
    running.group.wait_for("probe", end, TIMEOUT)
    row = running.row("late")
    assert row.state == "STOPPED"
    assert row.error.startswith("the plugin is still being imported, and the group goes on without it: dispatcher=late")
    assert not running.group.needs_properties
    with pytest.raises(WaitTimeout):
        running.group.wait_for("after", end, 0.1)
    gates["late"].touch()
    running.group.wait_for("after", end, TIMEOUT)
    running.group.wait_for("late", end, TIMEOUT)
    assert running.row("late").error is None
    # The owner is notified, and its frames include what the new dispatcher needs.
    running.wait_until(lambda: running.group.needs_properties)
    # A closing program waits for it to take in the log, if its import ends soon.
    ending = threading.Thread(target=running.stop)
    ending.start()
    gates["later"].touch()
    ending.join(TIMEOUT)
    assert not ending.is_alive()
    assert saved("later")["offsets"] == log.offsets


def test_whoever_asks_for_a_plugin_that_is_being_imported_gets_an_answer(log, plugins, context, processes, tmp_path):
    """SIGHUP, resume and attach may wait for it at the same time; each is answered, and the supervisor responds."""
    gate = tmp_path / "gate"
    waits = f"import os, time\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.01)\n"
    plugins.add("probe")
    plugins.add("bad", source="import no_such_module")
    running = processes(context("probe", "bad"))
    running.wait_for_state("bad", "BROKEN")
    supervisor = running.group.process.pid
    for name in ("bad", "new"):
        plugins.add(name, source=waits + PROBE.replace("DESCRIPTION", 'reads="appended"'))
    said = {}

    def ask(key, verb, name):
        try:
            said[key] = running.group.request(verb, name)
        except DispatcherError as error:
            said[key] = error

    asked = []
    for key, verb, name in [(1, "resume", "bad"), (2, "attach", "new"), (3, "resume", "bad")]:
        asked.append(threading.Thread(target=ask, args=(key, verb, name)))
        asked[-1].start()
        os.kill(supervisor, signal.SIGHUP)
        running.group.request("status")
    running.wait_until(lambda: "new" in [row.name for row in group_status(log.store_directory).dispatchers])
    for verb in ("resume", "pause", "detach", "restart"):
        with pytest.raises(DispatcherError, match="is being attached: dispatcher=new"):
            running.group.request(verb, "new")
    gate.touch()
    for thread in asked:
        thread.join(TIMEOUT)
    assert [bytes(said[key]) for key in (1, 2, 3)] == [b"null"] * 3
    end = log.put(5)
    running.group.wait_for("bad", end, TIMEOUT)
    running.group.wait_for("new", end, TIMEOUT)
    assert (running.group.process.pid, running.group.restart_count) == (supervisor, 0)


def test_what_leaves_can_be_attached_in_the_same_breath(log, plugins, context, processes, saved):
    """It comes back after it has left; other requests for it are refused meanwhile."""
    plugins.add("probe")
    plugins.add("slow", source=PROBE.replace("DESCRIPTION", 'reads="appended"'))
    running = processes(context("probe", "slow"))
    end = log.put(5)
    running.group.wait_for("slow", end, TIMEOUT)
    before = running.row("slow").pid
    os.kill(before, signal.SIGSTOP)
    for _ in range(3):
        running.group.request("detach", "slow")
        running.group.request("attach", "slow")
        running.group.wait_for("slow", log.put(1), TIMEOUT)
    running.stop()
    assert saved("slow")["offsets"] == log.offsets
    assert running.group.restart_count == 0


def test_an_upgrade_and_its_new_options_come_with_one_sighup(plugins, tmp_path):
    """The new version judges the options, and the status shows that version."""
    plugins.add("probe")
    config = tmp_path / "reput.toml"
    config.write_text('[dispatchers]\nenabled = ["probe"]\n[dispatchers.probe]\nlimit = 1\n')
    with reput.open(tmp_path / "store", config=config) as store:
        store.wait_for("probe", store.put(reput.Message("orders", b"one")).next_commit_log_offset, TIMEOUT)
        source = PROBE.replace("DESCRIPTION", 'reads="appended"').replace("limit: int", "size: int")
        plugins.version = "2.0"
        plugins.add("probe", source=source)
        config.write_text('[dispatchers]\nenabled = ["probe"]\n[dispatchers.probe]\nsize = 2\n')
        os.kill(store._engine.group.process.pid, signal.SIGHUP)
        pause = threading.Event()
        for _ in range(int(TIMEOUT / 0.01)):
            (row,) = store._engine.group.status()
            if row.version == "2.0" and store._engine.group.members["probe"].options == {"size": 2}:
                break
            pause.wait(0.01)
        assert (row.version, store._engine.group.members["probe"].options) == ("2.0", {"size": 2})
        store.wait_for("probe", store.put(reput.Message("orders", b"two")).next_commit_log_offset, TIMEOUT)
        assert store._engine.group.restart_count == 0


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


def test_dispatchers_are_attached_and_detached(log, plugins, context, processes, saved):
    """A newly installed one is attached, reads the log from its beginning, and is detached again."""
    plugins.add("probe")
    running = processes(context("probe"))
    running.group.wait_for("probe", log.put(5), TIMEOUT)
    with pytest.raises(ConfigError, match="dispatcher=late"):
        request(log.store_directory, "attach", "late")
    plugins.add("late", 'reads="appended", needs_properties=True')
    request(log.store_directory, "attach", "late")
    running.wait_until(lambda: "late" in running.group.members)
    assert running.group.needs_properties
    running.group.wait_for("late", log.put(5), TIMEOUT)
    request(log.store_directory, "detach", "late")
    running.wait_until(lambda: "late" not in running.group.members)
    assert saved("late")["offsets"] == log.offsets
    with pytest.raises(DispatcherError, match="not enabled"):
        running.group.progress("late")


def test_what_was_attached_is_there_under_the_next_supervisor(log, plugins, context, processes):
    """The same holds for paused ones."""
    plugins.add("probe")
    plugins.add("late")
    running = processes(context("probe"))
    running.group.request("attach", "late")
    running.wait_for_state("late", "RUNNING")
    running.group.request("pause", "probe")
    running.wait_for_state("probe", "PAUSED")
    victim = running.row("late").pid
    os.kill(running.group.process.pid, signal.SIGKILL)
    running.wait_until(lambda: running.row("late").pid not in (None, victim))
    running.group.wait_for("late", log.put(5), TIMEOUT)
    assert running.row("probe").state == "PAUSED"


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


def test_sighup_finds_what_was_changed(log, plugins, context, processes):
    """A repaired plugin leaves BROKEN, an upgraded one is restarted, an unchanged one continues."""
    plugins.add("probe")
    plugins.add("bad", source="import no_such_module")
    running = processes(context("probe", "bad"))
    running.wait_for_state("bad", "BROKEN")
    running.wait_for_state("probe", "RUNNING")
    before = running.row("probe").pid
    plugins.add("bad")
    os.kill(running.group.process.pid, signal.SIGHUP)
    running.wait_for_state("bad", "RUNNING")
    running.group.wait_for("bad", log.put(1), TIMEOUT)
    assert running.row("probe").pid == before
    plugins.version = "2.0"
    plugins.install()
    os.kill(running.group.process.pid, signal.SIGHUP)
    running.wait_until(lambda: running.row("probe").version == "2.0" and running.row("probe").pid not in (None, before))


def test_sighup_takes_up_what_was_installed_and_configured_since(plugins, tmp_path):
    """Without a stop: added ones start, removed ones leave, changed options apply, an invalid file changes nothing."""
    plugins.add("probe")
    config = tmp_path / "reput.toml"

    def configure(names, limit):
        sections = f'[dispatchers.probe]\nlimit = {limit}\n[dispatchers.second]\nplugin = "probe"\n'
        config.write_text(f"[dispatchers]\nenabled = {json.dumps(names)}\n{sections}")

    configure(["probe"], 1)
    with reput.open(tmp_path / "store", config=config) as store:
        log = tmp_path / "store" / "reput" / "log" / "group.log"

        def wait_until(holds):
            pause = threading.Event()
            for _ in range(int(TIMEOUT / 0.01)):
                if holds():
                    return
                pause.wait(0.01)
            raise AssertionError(f"{store.status()} {log.read_text()}")

        def hang_up_until(holds):
            os.kill(store._engine.group.process.pid, signal.SIGHUP)
            wait_until(holds)

        end = store.put(reput.Message("orders", b"one")).next_commit_log_offset
        store.wait_for("probe", end, TIMEOUT)
        before = store._engine.group.status()[0].pid
        plugins.add("late")
        configure(["probe", "late", "second"], 1)
        hang_up_until(lambda: {"late", "second"} <= store._engine.group.members.keys())
        for name in ("late", "second"):
            store.wait_for(name, end, TIMEOUT)
        assert store._engine.group.status()[0].pid == before
        configure(["probe", "late"], "'many'")
        hang_up_until(lambda: "the changed options are not used" in log.read_text())
        assert store._engine.group.status()[0].pid == before
        configure(["probe"], 2)
        hang_up_until(
            lambda: (
                "late" not in store._engine.group.members
                and store._engine.group.members["probe"].options == {"limit": 2}
            )
        )
        wait_until(lambda: store._engine.group.status()[0].pid not in (None, before))
        config.write_text("nonsense = 1")
        hang_up_until(lambda: "the changed configuration is not used" in log.read_text())
        before = store._engine.group.status()[0].pid
        os.kill(store._engine.group.process.pid, signal.SIGKILL)
        wait_until(
            lambda: store._engine.group.restart_count == 1 and store._engine.group.status()[0].pid not in (None, before)
        )
        assert store._engine.group.members["probe"].options == {"limit": 2}
        store.wait_for("probe", store.put(reput.Message("orders", b"two")).next_commit_log_offset, TIMEOUT)


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


def test_a_drain_ends_where_no_supervisor_can_be_started(log, plugins, context, processes, monkeypatch):
    """After a few tries the group is given up; the views continue at the next start."""
    plugins.add("probe")
    running = processes(context("probe"))
    running.group.wait_for("probe", log.put(10), TIMEOUT)
    monkeypatch.setattr("reput.process.owner.process_group.DRAIN_STARTS_MAX", 1)
    monkeypatch.setattr("reput.process.owner.process_group.role_command", lambda *arguments, **_: ["false"])
    os.kill(running.group.process.pid, signal.SIGKILL)
    running.stop()
    assert running.group.ended
    assert not running.group.drained


class Answer(msgspec.Struct):
    """More than any socket accepts at once."""

    text: str = "x" * (3 << 20)


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


def test_two_groups_do_not_work_on_one_view(log, plugins, context, processes, monkeypatch):
    """The second one is refused while a process of the first lives."""
    plugins.add("probe")
    running = processes(context("probe"))
    running.group.wait_for("probe", log.put(1), TIMEOUT)
    second = ProcessGroup(context("probe"), running.memory, lock_timeout=0.2)
    with pytest.raises(DispatcherError, match="another process group"):
        second.start()


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
