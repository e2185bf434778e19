"""Views that are rebuilt beside running dispatchers and swapped in, with kills."""

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
from command_line import REPUT
from reput.errors import ConfigError, DamagedStore, DispatcherError
from reput.process.control.control_socket import group_status, request
from reput.process.dispatcher.states import State
from reput.process.owner.offline_rebuild import rebuild_in_place
from reput.process.supervisor.live_rebuild import LiveRebuild
from reput.settings import Settings
from reput.store.check.check import check_store

TIMEOUT = 60.0

pytestmark = pytest.mark.processes


@pytest.fixture
def background():
    """Return a function that runs another one on a thread, and returns a function to wait for its result."""
    threads = []

    def run(function, *arguments):
        outcome = []

        def work():
            try:
                outcome.append(function(*arguments))
            except Exception as error:
                outcome.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        threads.append(thread)

        def join():
            thread.join(TIMEOUT)
            assert outcome, "it did not end"
            return outcome[0]

        return join

    yield run
    for thread in threads:
        thread.join(TIMEOUT)


def shadow(log):
    """Return the shadow's folder."""
    return log.store_directory / "reput" / "shadow"


def generation(running, name):
    return running.memory.view(running.group.members[name].slot).generation


def test_a_view_is_built_beside_the_running_one_and_swapped_in(log, plugins, context, processes, events, saved):
    """Puts continue, the dispatcher runs before and after, and nothing is left of the old view."""
    plugins.add("probe")
    running = processes(context("probe"))
    running.group.wait_for("probe", log.put(20), TIMEOUT)
    before = generation(running, "probe")
    (log.store_directory / "reput/views/probe/old").touch()
    (row,) = rebuild_in_place(log.store_directory, ["probe"])
    assert (row.view, row.records, row.bytes, row.swapped) == ("probe", 20, log.end, True)
    assert row.target == str(log.store_directory)
    assert generation(running, "probe") > before
    assert not (log.store_directory / "reput/views/probe/old").exists()
    assert not shadow(log).exists()
    running.group.wait_for("probe", log.put(5), TIMEOUT)
    assert running.row("probe").restart_count == 0
    running.stop()
    assert saved("probe")["offsets"] == log.offsets


def test_the_progress_that_readers_saw_never_goes_back(log, plugins, context, processes, background):
    """Until the swap readers use the old view, then the new one, which reaches at least as far."""
    plugins.add("probe")
    running = processes(context("probe"))
    running.group.wait_for("probe", log.put(20), TIMEOUT)
    done = threading.Event()

    def watch():
        seen = [running.group.progress("probe")]
        while not done.is_set():
            seen.append(running.group.progress("probe"))
        return seen

    watched = background(watch)
    for _ in range(2):
        rebuilt = background(running.group.rebuild, ["probe"])
        for _ in range(20):
            log.put(2)
        assert isinstance(rebuilt(), list)
    running.group.wait_for("probe", log.end, TIMEOUT)
    done.set()
    seen = watched()
    assert None not in seen
    assert seen == sorted(seen)


def test_what_others_come_after_is_waited_for_in_its_new_view(log, plugins, context, processes, saved):
    """Both are swapped at once; so is every view that is declared to be rebuilt with another one."""
    plugins.add("first")
    plugins.add("second", 'reads="appended", after=("first",), rebuilt_with=("first",)')
    running = processes(context("first", "second"))
    running.group.wait_for("second", log.put(20), TIMEOUT)
    rows = rebuild_in_place(log.store_directory, ["first"])
    assert [row.view for row in rows] == ["first", "second"]
    running.group.wait_for("second", log.put(5), TIMEOUT)
    (row,) = rebuild_in_place(log.store_directory, ["second"])
    assert row.view == "second"
    running.stop()
    assert saved("first")["offsets"] == saved("second")["offsets"] == log.offsets


@pytest.mark.parametrize(
    ("first", "running", "near"),
    [(None, None, False), (None, 100, False), (0, 100, False), (60, 100, False), (100, None, True), (100, 100, True)],
)
def test_how_far_a_view_has_to_come_is_known_once_those_it_comes_after_have_started(first, running, near):
    """A new view may not have started yet, and the running one may be further."""
    rebuild = LiveRebuild.__new__(LiveRebuild)
    rebuild.goals = {}
    rebuild.members = {"second": SimpleNamespace(cell=SimpleNamespace(progress=running))}
    description = SimpleNamespace(reads="appended", after_failed="proceed")
    built = SimpleNamespace(progress=min(first or 0, 100))
    rebuild.shadows = {"second": SimpleNamespace(description=description, state=State.RUNNING, cell=built)}
    before = SimpleNamespace(state=State.STARTING, cell=SimpleNamespace(progress=first))
    rebuild.group = SimpleNamespace(
        memory=SimpleNamespace(header=SimpleNamespace(appended=100)), predecessors=lambda shadow: [before]
    )
    assert rebuild.is_near("second") is near


def hold_rebuild(log, plugins, context, processes, background, **options):
    """Return a group whose rebuild of `probe` hangs in the new view's process, and a function to await the result."""
    plugins.add("probe")
    running = processes(context("probe", options={"probe": options}))
    running.group.wait_for("probe", log.put(20), TIMEOUT)
    rebuilt = background(rebuild_in_place, log.store_directory, ["probe"])
    running.wait_until(lambda: running.group.members["probe"].shadow_slot is not None)
    return running, rebuilt


# Only in the rebuild: the running dispatcher finds the file that lets it continue.
HANGS_IN_SHADOW = {"hang_in_shadow": True}


def test_a_rebuild_shows_its_progress_and_holds_the_log(log, plugins, context, processes, background):
    """Retention waits for it like for any dispatcher; disconnecting cancels it."""
    running, rebuilt = hold_rebuild(log, plugins, context, processes, background, **HANGS_IN_SHADOW)
    running.wait_until(lambda: running.row("probe").rebuild_progress is not None)
    assert running.row("probe").state == "RUNNING"
    assert running.group.needed_from("probe") == 0
    assert group_status(log.store_directory).dispatchers[0].rebuild_progress == 0
    with pytest.raises(DispatcherError, match="another rebuild is running"):
        running.group.rebuild(["probe"])
    with pytest.raises(DispatcherError, match="being rebuilt"):
        request(log.store_directory, "detach", "probe")
    running.stop()
    assert isinstance(rebuilt(), DispatcherError)
    assert not shadow(log).exists()


def test_whoever_goes_away_gives_the_rebuild_up(log, plugins, context, processes, saved):
    """Like Ctrl-C in any command."""
    plugins.add("probe")
    running = processes(context("probe", options={"probe": HANGS_IN_SHADOW}))
    running.group.wait_for("probe", log.put(20), TIMEOUT)
    command = [str(REPUT), "rebuild", str(log.store_directory), "probe"]
    client = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        running.wait_until(lambda: running.group.members["probe"].shadow_slot is not None)
    finally:
        client.kill()
        client.wait()
    running.wait_until(lambda: running.group.members["probe"].shadow_slot is None and not shadow(log).exists())
    running.group.wait_for("probe", log.put(5), TIMEOUT)
    running.stop()
    assert saved("probe")["offsets"] == log.offsets


def test_a_new_view_that_cannot_be_built_leaves_the_old_one(log, plugins, context, processes, saved):
    """The error contains the plugin's message; the running dispatcher is not affected."""
    plugins.add("probe")
    options = {"probe": {"crash_in_shadow": True}}
    running = processes(context("probe", options=options, dispatcher_restart_count_max=1, dispatcher_backoff_min=1))
    running.group.wait_for("probe", log.put(20), TIMEOUT)
    pid = running.row("probe").pid
    with pytest.raises(DispatcherError, match="crash in shadow"):
        rebuild_in_place(log.store_directory, ["probe"])
    assert running.row("probe").pid == pid
    assert not shadow(log).exists()
    running.stop()
    assert saved("probe")["offsets"] == log.offsets


def upgraded(log, plugins, context, processes, **options):
    """Return a group whose plugin has another view format than the existing view of ten records."""
    plugins.add("probe")
    running = processes(context("probe"))
    running.group.wait_for("probe", log.put(10), TIMEOUT)
    running.stop()
    log.publisher = None
    log.put(10)
    plugins.add("probe", 'reads="appended", view_version=2')
    plugins.version = "2.0"
    plugins.install()
    return processes(context("probe", options={"probe": options}))


def view_version(log):
    """Return the recorded format of the view, None if there is none."""
    path = log.store_directory / "reput/views/probe/.view_version"
    return path.read_text() if path.exists() else None


def test_a_view_of_another_format_is_built_again_beside_the_old_one(
    log, plugins, context, processes, saved, background
):
    """Readers use the old view meanwhile. A requested rebuild waits for this one."""
    running = upgraded(log, plugins, context, processes, hang_in_shadow_until="go")
    running.wait_until(lambda: shadow(log).exists() and running.row("probe").rebuild_progress is not None)
    assert len(saved("probe")["offsets"]) == 10
    assert view_version(log) is None
    row = running.row("probe")
    assert (row.state, row.restart_count) == ("STOPPED", 0)
    assert "beside the old one: its format was changed: dispatcher=probe view_version=0 declared=2" in row.error
    rebuilt = background(rebuild_in_place, log.store_directory, ["probe"])
    (log.store_directory / "go").touch()
    assert [row.view for row in rebuilt()] == ["probe"]
    running.group.wait_for("probe", log.put(5), TIMEOUT)
    running.wait_for_state("probe", "RUNNING")
    assert running.row("probe").error is None
    assert view_version(log) == "2"
    running.stop()
    assert saved("probe")["offsets"] == log.offsets
    assert not shadow(log).exists()


def test_a_group_that_ends_waits_for_a_view_in_its_new_format(log, plugins, context, processes, saved, events):
    """Otherwise a program that opens its store briefly would never finish it; the next start has nothing to do."""
    upgraded(log, plugins, context, processes).stop()
    assert saved("probe")["offsets"] == log.offsets
    assert view_version(log) == "2"
    assert events("probe", "start")[1] == [None]


def test_a_view_that_cannot_be_built_in_its_new_format_stays_as_it_was(log, plugins, context, processes, saved):
    """The dispatcher is FATAL, with the reason; after the cause is removed, a resume rebuilds it."""
    running = upgraded(log, plugins, context, processes, crash_at=0, crash_until=str(log.store_directory / "repaired"))
    running.wait_for_state("probe", "FATAL")
    assert "could not be built in its new format" in running.row("probe").error
    assert "crash at 0" in running.row("probe").error
    assert len(saved("probe")["offsets"]) == 10
    (log.store_directory / "repaired").touch()
    running.wait_until(lambda: not shadow(log).exists())
    request(log.store_directory, "resume", "probe")
    running.group.wait_for("probe", log.put(1), TIMEOUT)
    running.stop()
    assert saved("probe")["offsets"] == log.offsets


def test_a_view_that_is_declared_to_lie_elsewhere_is_built_again_on_an_operator_s_word(
    log, plugins, context, processes, saved
):
    """The whole log would be sent again; with --force it is, and the dispatcher continues where that ended."""
    plugins.add("probe", 'reads="appended", view_elsewhere=True')
    running = processes(context("probe"))
    running.group.wait_for("probe", log.put(20), TIMEOUT)
    with pytest.raises(ConfigError, match=r"the view lies elsewhere, .* would be sent there again: dispatcher=probe"):
        rebuild_in_place(log.store_directory, ["probe"])
    with pytest.raises(ConfigError, match="the view lies elsewhere"):
        running.group.rebuild(["probe"])
    assert running.row("probe").state == "RUNNING"
    (row,) = rebuild_in_place(log.store_directory, ["probe"], force=True)
    assert row.records == 20
    running.group.wait_for("probe", log.put(3), TIMEOUT)
    running.stop()
    assert saved("probe")["offsets"] == log.offsets


def test_a_view_elsewhere_that_would_come_along_with_another_is_not_forgotten(log, plugins, context, processes):
    """It is named, and neither is rebuilt."""
    plugins.add("first")
    plugins.add("probe", 'reads="appended", view_elsewhere=True, rebuilt_with=("first",)')
    running = processes(context("first", "probe"))
    running.group.wait_for("probe", log.put(2), TIMEOUT)
    with pytest.raises(ConfigError, match="dispatcher=probe"):
        rebuild_in_place(log.store_directory, ["first"])


def test_a_view_that_is_kept_elsewhere_cannot_be_built_anew(log, plugins, context, processes, tmp_path):
    """A second instance would work on the same data as the running one."""
    plugins.add("probe")
    running = processes(context("probe", options={"probe": {"elsewhere": str(tmp_path)}}))
    running.group.wait_for("probe", log.put(20), TIMEOUT)
    running.wait_until(lambda: (tmp_path / "probe.json").exists())
    with pytest.raises(DispatcherError, match="cannot rebuild its external view") as refused:
        rebuild_in_place(log.store_directory, ["probe"])
    assert "give it another place in its options to begin with the log" in str(refused.value)
    assert running.row("probe").state == "RUNNING"


def test_damage_ends_a_rebuild_with_its_place(log, plugins, context, processes):
    """The old view, built before the damage, stays."""
    plugins.add("probe")
    running = processes(context("probe"))
    running.group.wait_for("probe", log.put(10), TIMEOUT)
    with (log.store_directory / "commitlog" / f"{0:020}").open("r+b") as segment:
        # The first byte of a body, which has a CRC.
        segment.seek(log.offsets[4] + 88)
        segment.write(b"!")
    with pytest.raises(DispatcherError, match=f"CRC does not match: from={log.offsets[4]} until={log.offsets[5]}"):
        rebuild_in_place(log.store_directory, ["probe"])
    assert running.row("probe").state == "RUNNING"
    assert running.row("probe").error is None


def test_a_killed_builder_goes_on_where_it_was(log, plugins, context, processes, saved, background):
    """It is an ordinary dispatcher."""
    running, rebuilt = hold_rebuild(log, plugins, context, processes, background, hang_in_shadow_until="go")
    slot = running.group.members["probe"].shadow_slot
    running.wait_until(lambda: running.memory.view(slot).pid is not None)
    victim = running.memory.view(slot).pid
    os.kill(victim, signal.SIGKILL)
    (log.store_directory / "go").touch()
    assert [row.view for row in rebuilt()] == ["probe"]
    running.stop()
    assert saved("probe")["offsets"] == log.offsets


def test_a_killed_supervisor_leaves_the_old_view_and_no_shadow(log, plugins, context, processes, saved, background):
    """The client gets an error; the next supervisor removes the unfinished rebuild."""
    running, rebuilt = hold_rebuild(log, plugins, context, processes, background, **HANGS_IN_SHADOW)
    running.wait_until(shadow(log).exists)
    pid = running.row("probe").pid
    os.kill(running.group.process.pid, signal.SIGKILL)
    assert "supervisor ended" in str(rebuilt())
    running.wait_until(lambda: running.row("probe").pid not in (None, pid))
    assert not shadow(log).exists()
    running.group.wait_for("probe", log.put(5), TIMEOUT)
    assert running.row("probe").rebuild_progress is None
    running.stop()
    assert saved("probe")["offsets"] == log.offsets


def test_a_paused_view_is_rebuilt_and_stays_paused(log, plugins, context, processes, saved):
    """A FATAL one starts: its old view may have been the cause."""
    plugins.add("probe")
    running = processes(context("probe"))
    running.group.wait_for("probe", log.put(20), TIMEOUT)
    running.group.request("pause", "probe")
    running.wait_for_state("probe", "PAUSED")
    log.put(5)
    rebuild_in_place(log.store_directory, ["probe"])
    assert running.row("probe").state == "PAUSED"
    assert saved("probe")["offsets"] == log.offsets
    running.group.request("resume", "probe")
    running.group.wait_for("probe", log.put(1), TIMEOUT)


def test_a_view_that_is_not_enabled_is_refused(log, plugins, context, processes):
    """By name."""
    plugins.add("probe")
    running = processes(context("probe"))
    with pytest.raises(DispatcherError, match="dispatcher=nobody"):
        running.group.rebuild(["probe", "nobody"])
    assert not shadow(log).exists()


# Consume queue and index of a store with concurrent puts and reads.


def messages(count):
    return [reput.Message("orders", b"body", keys=[f"key-{number}"], queue_id=number % 3) for number in range(count)]


def assert_views_are_right(store):
    """Check every view of a closed store against the log."""
    report = check_store(store, Settings(mapped_file_size_commit_log=1 << 20))
    assert report.ok, report
    assert {view.state for name, view in report.views.items() if name != "consume_queue_ext"} == {"equal"}


def test_readers_see_every_message_while_views_are_swapped(tmp_path, background):
    """In this process and as a second process reads: no error, nothing missing, and ends that only grow."""
    path = tmp_path / "store"
    with reput.open(path, mapped_file_size_commit_log=1 << 20) as store:
        end = store.put_batch(messages(300))[-1].next_commit_log_offset
        for view in ("consume_queue", "index"):
            store.wait_for(view, end, TIMEOUT)
        done = threading.Event()

        def read(opened):
            last = 0
            rounds = 0
            while not done.is_set() or rounds < 3:
                rounds += 1
                _, now = opened.queue_range("orders", 0)
                assert now >= last, (last, now)
                last = now
                for at in (0, now // 2, now - 1):
                    found = opened.get("orders", 0, at, 3)
                    assert found[0].queue_offset == at
                assert [record.queue_id for record in opened.query("orders", "key-7")] == [1]
            return rounds

        with reput.open(path, read_only=True) as observer:
            readers = [background(read, store), background(read, observer)]
            for _ in range(2):
                rebuilt = background(store.rebuild, "consume_queue", "index")
                for _ in range(30):
                    store.put_batch(messages(3))
                assert [row.view for row in rebuilt()] == ["consume_queue", "index"]
            done.set()
            for reader in readers:
                outcome = reader()
                assert isinstance(outcome, int), outcome
    assert_views_are_right(path)


@pytest.mark.parametrize("moment", ["built", "intended", "swapped"])
def test_after_a_kill_of_the_whole_group_the_views_are_right(tmp_path, moment):
    """Old or new, never a mixture, and no shadow after the next start."""
    path = tmp_path / "store"
    program = str(Path(__file__).parents[1] / "rebuilding_program.py")
    owner = subprocess.Popen([sys.executable, program, str(path)], stdout=subprocess.PIPE, text=True)
    shadow, intent = path / "reput" / "shadow", path / "reput" / "shadow.swap"
    moments = {"built": shadow.exists, "intended": intent.exists, "swapped": lambda: False}
    try:
        acknowledged = json.loads(owner.stdout.readline())["acknowledged"]
        if moment == "swapped":
            assert json.loads(owner.stdout.readline())["rebuilt"] == ["consume_queue", "index"]
        else:
            # Far more checks than the shortest of the moments lasts; rebuilds follow each other.
            for _ in range(int(TIMEOUT / 0.0001)):
                if moments[moment]():
                    break
                threading.Event().wait(0.0001)
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    with reput.open(path) as store:
        assert store.appended >= acknowledged
        for view in ("consume_queue", "index"):
            store.wait_for(view, store.appended, TIMEOUT)
        assert not shadow.exists()
        assert not intent.exists()
    assert_views_are_right(path)


def test_a_store_that_was_killed_in_a_rebuild_opens_inline(tmp_path):
    """Inline groups also clean up."""
    path = tmp_path / "store"
    with reput.open(path, mode="inline") as store:
        store.put_batch(messages(10))
    (path / "reput" / "shadow" / "half").mkdir(parents=True)
    with reput.open(path, mode="inline") as store:
        assert not (path / "reput" / "shadow").exists()
        with pytest.raises(DispatcherError, match="inline"):
            store.rebuild("index")


def test_an_intent_of_rubbish_refuses_the_group_with_its_name(tmp_path):
    """The valid views are unknown; an operator must move the file away."""
    path = tmp_path / "store"
    with reput.open(path) as store:
        store.put_batch(messages(10))
    intent = path / "reput" / "shadow.swap"
    intent.write_bytes(b"rubbish")
    with pytest.raises(DamagedStore, match=r"shadow\.swap"):
        reput.open(path)
    intent.unlink()
    with reput.open(path):
        pass
    assert_views_are_right(path)
