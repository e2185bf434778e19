"""Dispatchers and settings that change while the group runs."""

from __future__ import annotations

import json
import os
import signal
import threading

import pytest

import reput
from process.owner.group_processes import TIMEOUT
from process.probe_plugin import PROBE
from reput.errors import ConfigError, DispatcherError, WaitTimeout
from reput.process.control.control_socket import (
    group_status,
    request,
)

pytestmark = pytest.mark.processes


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
