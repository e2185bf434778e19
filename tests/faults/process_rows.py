"""The fault matrix of process groups: real processes, real plugins, real signals."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import reput
from command_line import run_reput_process
from faults.process_scene import (
    TIMEOUT,
    VIEWS,
    ProcessScene,
    await_all,
    process_scene,
    put,
    row_of,
    strike,
    wait_until,
)
from faults.rows import row
from process.villain_plugin import VILLAIN
from reput.errors import ConfigError, DispatcherError, StoreLocked

__all__: list[str] = []

OWNER = Path(__file__).parents[1] / "process" / "owner_program.py"

Act = Callable[[ProcessScene], int]


def process_row(fault: str, place: str, afterwards: str) -> Callable[[Act], Act]:
    """Add a function to the matrix that gets its own scene."""

    def enter(act: Act) -> Act:
        def run(root: Path) -> int:
            with process_scene(root) as scene:
                return act(scene)

        run.__name__ = act.__name__
        row(fault, place, afterwards, pytest.mark.processes)(run)
        return act

    return enter


# The effect of a plugin on its process, and the expected text of its error.
CRASHES = {
    "exit": "exit_status=9",
    "fault": "signal=SIGSEGV",
    "exhaust": "MemoryError",
    "shout": "shouted",
    "leave": "bye",
    "interrupt": "KeyboardInterrupt",
    "die_of_a_signal": "signal=SIGABRT",
    "close_descriptors": "closed them",
}
FORBIDDEN_WRITES = {"write_into_ring": "signal=SIGSEGV", "write_into_cells": "signal=SIGSEGV"}


def misbehave(scene: ProcessScene, misdeeds: dict[str, str]) -> int:
    """Make a plugin do each misdeed repeatedly; then repair it."""
    stolen, healed = scene.root / "stolen", scene.root / "healed"
    options: dict[str, object] = {"dispatcher_restart_count_max": 100, "dispatcher_backoff_max": 200}
    for how in misdeeds:
        scene.plugins.add(how, source=VILLAIN.replace("STOLEN", repr(str(stolen))))
        options |= {f"dispatchers.{how}.how": how, f"dispatchers.{how}.healed": str(healed)}
    with scene.open(*misdeeds, **options) as store:
        before = {view: row_of(store, view).pid for view in VIEWS}
        put(store)
        for how in misdeeds:
            wait_until(lambda how=how: row_of(store, how).restart_count >= 2, store)
        end = put(store)
        await_all(store, end)
        for how, said in misdeeds.items():
            wait_until(lambda how=how, said=said: said in (row_of(store, how).error or ""), store)
        assert not stolen.exists()
        healed.touch()
        await_all(store, end, *misdeeds)
        assert {view: row_of(store, view).restart_count for view in VIEWS} == dict.fromkeys(VIEWS, 0)
        assert before == {view: row_of(store, view).pid for view in VIEWS}
    scene.settle(*misdeeds)
    return len(misdeeds)


@process_row(
    "Plugin ruins its process", "a dispatcher's process", "the others are not even restarted; its error is shown"
)
def ruin_process(scene: ProcessScene) -> int:
    return misbehave(scene, CRASHES)


@process_row("Plugin writes into the ring, or into another's cell", "shared memory", "the write faults, in that plugin")
def write_into_shared_memory(scene: ProcessScene) -> int:
    return misbehave(scene, FORBIDDEN_WRITES)


@process_row(
    "Plugin hangs, or is slow", "a dispatcher's process", "its lag is shown, nothing waits for it, it catches up"
)
def stand_still(scene: ProcessScene) -> int:
    healed, names = scene.root / "healed", ("stop", "be_slow")
    options = {
        f"dispatchers.{name}.{key}": value for name in names for key, value in (("how", name), ("healed", str(healed)))
    }
    for name in names:
        scene.plugins.add(name, source=VILLAIN.replace("STOLEN", "''"))
    with scene.open(*names, ring_size=1 << 16, **options) as store:
        put(store)
        for name in names:
            wait_until(lambda name=name: row_of(store, name).pid is not None, store)
        for _ in range(50):
            end = put(store, 100)
        await_all(store, end)
        for name in names:
            # A starting dispatcher has no lag yet.
            wait_until(lambda name=name: row_of(store, name).lag_bytes and row_of(store, name).lag_seconds, store)
        healed.touch()
        strike(row_of(store, "stop").pid, signal.SIGCONT)
        await_all(store, end, *names)
        assert {row_of(store, name).lag_bytes for name in names} == {0}
    scene.settle(*names)
    return len(names)


@process_row("Plugin hangs, or is slow", "a close with a time limit", "it ends in time; the view continues after it")
def stand_still_at_close(scene: ProcessScene) -> int:
    healed, names = scene.root / "healed", ("stop", "be_slow")
    options = {
        f"dispatchers.{name}.{key}": value for name in names for key, value in (("how", name), ("healed", str(healed)))
    }
    for name in names:
        scene.plugins.add(name, source=VILLAIN.replace("STOLEN", "''"))
    with scene.open(*names, **options) as store:
        for _ in range(50):
            end = put(store, 100)
        await_all(store, end)
        pids = store.pids()[1:]
        began = time.monotonic()
        store.close(timeout=0.1)
        assert time.monotonic() - began < TIMEOUT / 2
    pause = threading.Event()
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        pause.wait(0.01)
    healed.touch()
    with scene.open(*names, **options) as store:
        await_all(store, end, *names)
    scene.settle(*names)
    return len(names)


def strike_dispatcher(store: reput.Store, view: str, number: int) -> int:
    """Send a signal to a view's dispatcher and return its process id.

    After a pause of the machine it may just have been ended and restarted for its time limit.
    """
    struck = []

    def strike_it() -> bool:
        pid = row_of(store, view).pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                struck.append(pid)
        return bool(struck)

    wait_until(strike_it, store)
    return struck[0]


def strike_views(scene: ProcessScene, *signals: signal.Signals, **limits: int) -> int:
    """Send each signal to each view's dispatcher, twice, and read meanwhile."""
    count = 0
    with scene.open(**limits) as store:
        await_all(store, put(store))
        for number in [*signals, *signals]:
            for view in VIEWS:
                victim = strike_dispatcher(store, view, number)
                count += 1
                end = put(store)
                assert len(store.get("orders", 0, 0, 7)) == 7
                assert len(store.query("orders", "key-1")) >= 1
                # A stopped one sends no heartbeat, and is killed for it.
                await_all(store, end)
                wait_until(lambda view=view, victim=victim: row_of(store, view).pid not in (None, victim), store)
    scene.settle()
    return count


@process_row("Dispatcher killed", "consume queue, index", "readers have what lies below its progress, then everything")
def kill_dispatcher_process(scene: ProcessScene) -> int:
    return strike_views(scene, signal.SIGKILL, signal.SIGSEGV)


@process_row("Dispatcher stopped", "consume queue, index", "it is found out, killed, and begins again")
def stop_dispatcher_process(scene: ProcessScene) -> int:
    # It may be stopped in any phase.
    limits = {f"dispatcher_{phase}_time_max": 10_000 for phase in ("start", "flush", "expire")}
    return strike_views(scene, signal.SIGSTOP, dispatcher_dispatch_time_max=1000, **limits)


@process_row("Supervisor killed", "beside a writer that puts", "puts continue; another one takes over ring and cells")
def kill_supervisor(scene: ProcessScene) -> int:
    with scene.open() as store:
        for _ in range(3):
            await_all(store, put(store))
            before = store.pids()
            strike(before[1], signal.SIGKILL)
            end = put(store)
            # Its dispatchers die with it.
            wait_until(lambda before=before: len({*store.pids()} - {*before}) == 1 + len(VIEWS), store)
            await_all(store, end)
    scene.settle()
    return 3


@process_row(
    "Plugin crashes in a loop", "at one record", "it ends in FATAL, the others continue; resumed by hand it catches up"
)
def crash_in_a_loop(scene: ProcessScene) -> int:
    scene.plugins.add("probe")
    go = scene.root / "go"
    options = {"dispatchers.probe.kill_at": 0, "dispatchers.probe.crash_until": str(go)}
    with scene.open("probe", dispatcher_restart_count_max=2, dispatcher_backoff_min=1, **options) as store:
        end = put(store)
        wait_until(lambda: row_of(store, "probe").state == "FATAL", store)
        assert row_of(store, "probe").restart_count == 2
        assert "signal=SIGKILL" in (row_of(store, "probe").error or "")
        with pytest.raises(DispatcherError, match="state=FATAL"):
            store.wait_for("probe", end, TIMEOUT)
        await_all(store, end)
        go.touch()
        store._engine.group.request("resume", "probe")
        await_all(store, end, "probe")
    scene.settle("probe")
    return 1


@process_row("Poison record", "a plugin that rejects it", "it is a dead letter, once; all later records are dispatched")
def reject_a_record(scene: ProcessScene) -> int:
    scene.plugins.add("probe")
    with scene.open("probe", **{"dispatchers.probe.reject_at": 0}) as store:
        end = put(store)
        await_all(store, end, "probe")
        strike(row_of(store, "probe").pid, signal.SIGKILL)
        end = put(store)
        await_all(store, end, "probe")
        assert row_of(store, "probe").rejected_count == 1
    scene.settle("probe")
    (letter,) = (scene.path / "reput" / "dead_letters" / "probe.jsonl").read_text().splitlines()
    assert json.loads(letter)["commit_log_offset"] == 0
    return 1


@process_row("Plugin cannot be imported", "start of a group", "it is BROKEN with its error, the others run")
def break_plugins(scene: ProcessScene) -> int:
    scene.plugins.add("bad", source="import no_such_module")
    scene.plugins.add("dies", source="import os; os._exit(7)")
    scene.plugins.add("old", 'reads="appended", api_version=99')
    said = {"bad": "No module named 'no_such_module'", "dies": "exit_status=7", "old": "api_version=99"}
    with scene.open(*said) as store:
        await_all(store, put(store))
        for name, text in said.items():
            assert row_of(store, name).state == "BROKEN"
            assert text in (row_of(store, name).error or "")
    scene.settle()
    return len(said)


@process_row("Configuration is wrong", "start of a group", "refused by name; no dispatcher has run, no lock is held")
def configure_wrongly(scene: ProcessScene) -> int:
    scene.plugins.add("probe")
    wrong: list[tuple[tuple[str, ...], dict[str, object], str]] = [
        (("probe",), {"dispatchers.probe.limit": "many"}, r"dispatchers\.probe\.limit"),
        (("probe",), {"dispatchers.probe.limt": 1}, r"dispatchers\.probe\.limt"),
        (("prob",), {}, "dispatcher=prob"),
        (("probe",), {"ring_size": -1}, "ring_size"),
    ]
    with scene.open("probe") as store:
        await_all(store, put(store), "probe")
    for names, settings, text in wrong:
        with pytest.raises(ConfigError, match=text):
            scene.open(*names, **settings)
    with scene.open("probe") as store:
        await_all(store, put(store), "probe")
    scene.settle("probe")
    return len(wrong)


@process_row("Reader lapped", "the ring", "it notices, and reads the log instead")
def lap_readers(scene: ProcessScene) -> int:
    scene.plugins.add("probe")
    count = 0
    with scene.open("probe", ring_size=1 << 16) as store:
        for _ in range(3):
            await_all(store, put(store), "probe")
            pid, before = row_of(store, "probe").pid, row_of(store, "probe").lapped_count or 0
            strike(pid, signal.SIGSTOP)
            for _ in range(40):
                end = put(store, 100)
            strike(pid, signal.SIGCONT)
            await_all(store, end, "probe")
            count += (row_of(store, "probe").lapped_count or 0) > before
    scene.settle("probe")
    # A tool that continues all stopped processes of the machine may spoil a round.
    assert count > 0
    return 3


@process_row("Frame torn, or rubbish", "the ring", "its readers end, and begin again in the log")
def tear_frames(scene: ProcessScene) -> int:
    scene.plugins.add("probe")
    frames = (b"\xc1 this is no frame", b"", bytes(200))
    with scene.open("probe", dispatcher_backoff_min=1) as store:
        for number, frame in enumerate(frames, 1):
            await_all(store, put(store), "probe")
            assert store._engine.views.ring is not None
            store._engine.views.ring.writer.publish(frame, store.appended, store._engine.writer.ordinal)
            for name in (*VIEWS, "probe"):
                wait_until(lambda name=name, number=number: row_of(store, name).restart_count == number, store)
    scene.settle("probe")
    return len(frames)


@process_row(
    "Started twice", "by this process, and by another one", "refused with the holder's process id; the first continues"
)
def start_twice(scene: ProcessScene) -> int:
    with scene.open() as store:
        await_all(store, put(store))
        with pytest.raises(StoreLocked, match=str(os.getpid())):
            scene.open()
        second = run_reput_process("send", scene.path, "orders", "--count", 1)
        assert second.code != 0
        assert str(os.getpid()) in second.stderr
        await_all(store, put(store))
    scene.settle()
    return 2


@process_row(
    "Process id of a writer used again", "by a stranger", "the lock shows correctly that no process holds the store"
)
def reuse_process_id(scene: ProcessScene) -> int:
    with scene.open() as store:
        put(store)
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        file = scene.path / "reput" / "writer.json"
        written = msgspec.json.decode(file.read_bytes()) if file.exists() else {}
        file.write_bytes(msgspec.json.encode(written | {"pid": stranger.pid}))
        with reput.open(scene.path, read_only=True) as reader:
            writer = reader.status().writer
            assert writer is None or writer.state == "STOPPED"
        with scene.open() as store:
            await_all(store, put(store))
    finally:
        stranger.communicate()
    scene.settle()
    return 1


def start_owner(scene: ProcessScene) -> tuple[subprocess.Popen[str], list[int]]:
    """Start a program that puts continuously, and return it with all processes of its group."""
    program = [sys.executable, str(OWNER), str(scene.path), str(scene.plugins.folder), *VIEWS]
    owner = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    group = json.loads(owner.stdout.readline())
    return owner, [owner.pid, group["supervisor"], *group["dispatchers"]]


def alive(pid: int) -> bool:
    """Tell whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@process_row("Owner killed, or all of the group at once", "while it puts", "no process, lock or named memory is left")
def kill_whole_group(scene: ProcessScene) -> int:
    for whole in (False, True):
        owner, pids = start_owner(scene)
        assert owner.stdout is not None
        try:
            acknowledged = [json.loads(owner.stdout.readline())["acknowledged"] for _ in range(20)][-1]
            for pid in pids if whole else pids[:1]:
                # The others may already have ended because the owner is gone.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        finally:
            owner.kill()
            owner.wait()
            owner.stdout.close()
        # Opened at once: the rest of the group ends by itself meanwhile.
        with reput.open(scene.path) as store:
            assert isinstance(store, reput.Store)
            assert store.appended >= acknowledged
            await_all(store, put(store))
            wait_until(lambda pids=pids: not any(map(alive, pids)), store)
    scene.settle()
    return 2


@process_row(
    "Retention removes records that a view lacks",
    "a dispatcher that hangs",
    "its gap is shown for ever; the others lack nothing",
)
def trim_past_a_cursor(scene: ProcessScene) -> int:
    scene.plugins.add("probe")
    size = 1 << 16
    with scene.open("probe", mapped_file_size_commit_log=size, dispatcher_dispatch_time_max=600_000) as store:
        await_all(store, put(store), "probe")
        pid, cursor = row_of(store, "probe").pid, row_of(store, "probe").progress or 0
        strike(pid, signal.SIGSTOP)
        while store.appended < 4 * size:
            end = put(store, 100)
        await_all(store, end)
        store.flush()
        for number in range(2):
            store._engine.writer.trim(scene.path / "commitlog" / f"{number * size:020d}", (number + 1) * size)
        strike(pid, signal.SIGCONT)
        await_all(store, end, "probe")
        wait_until(lambda: row_of(store, "probe").gap_bytes == 2 * size - cursor, store)
        assert {row_of(store, view).gap_bytes for view in VIEWS} <= {0, None}
    scene.settle("probe", gap=(cursor, 2 * size))
    return 1


PLACES = ("consumequeue", "index", "reput/views/consume_queue", "reput/views/index")


@process_row("View deleted", "its files, or its cursor", "it is rebuilt")
def delete_views(scene: ProcessScene) -> int:
    with scene.open() as store:
        put(store, 50)
    for place in PLACES:
        shutil.rmtree(scene.path / place)
        with scene.open() as store:
            await_all(store, put(store))
        scene.settle()
    return len(PLACES)


@process_row(
    "View swapped for an older copy", "its files, or both files and cursor", "it continues from there, or is rebuilt"
)
def swap_views(scene: ProcessScene) -> int:
    with scene.open() as store:
        put(store)
    backup = scene.root / "backup"
    shutil.copytree(scene.path, backup)
    with scene.open() as store:
        put(store, 50)
    swaps = [PLACES[:1], PLACES[1:2], (PLACES[0], PLACES[2]), (PLACES[1], PLACES[3])]
    for places in swaps:
        for place in places:
            shutil.rmtree(scene.path / place)
            shutil.copytree(backup / place, scene.path / place)
        with scene.open() as store:
            await_all(store, put(store))
        scene.settle()
    return len(swaps)
