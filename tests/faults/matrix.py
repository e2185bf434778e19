"""The fault matrix of a store on a simulated machine.

Every row of a simulated machine ends with `ScriptedStore.settle`.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import msgspec
import pytest

from faults.rows import row
from faults.scripted_store import AsyncStore, PooledStore, ScriptedStore, SyncStore, at_every_call
from faulty_files import Killed
from reput.errors import StoreError, StoreFull, StoreReadOnly
from reput.store.message_store import MessageStore
from reput_hooks import RebuildNeeded
from simulation.simulated_machine import HeldThreads
from small_store import (
    SEGMENT_SIZE,
    ManualClock,
    UnforcedFiles,
    drop,
    message_of_size,
    open_store,
    overwrite,
    records,
    small_settings,
)

__all__: list[str] = []


def opened(store: ScriptedStore) -> None:
    """A store with some records, all but the last of which are forced."""
    store.open()
    store.put_many(8)
    store.flush()
    store.put_many(2)


def append_roll_and_flush(store: ScriptedStore) -> None:
    for _ in range(6):
        store.put_many(4)
        store.help_log()
        store.clock.advance(12.0)
        store.flush()


def close_without_views(store: ScriptedStore) -> None:
    store.store.stop_puts()
    store.store.close(views_complete=False)


HOUR_MS = 3_600_000
KILL = "Process killed at each of its file calls"
CUT = "Power cut at each of its file calls, any of what was not forced lost"


@row(KILL, "append, roll, flush", "nothing that was appended is lost")
def kill_append(root: Path) -> int:
    return killed_at_every_call(root, AsyncStore)


@row(CUT, "append, roll, flush", "nothing that was forced is lost, and what is left has no hole")
def cut_append(root: Path) -> int:
    return cut_at_every_call(root, AsyncStore)


@row(KILL, "append, commit, roll, flush with SYNC_FLUSH", "nothing that was committed is lost")
def kill_synchronous_append(root: Path) -> int:
    return killed_at_every_call(root, SyncStore)


@row(CUT, "append, commit, roll, flush with SYNC_FLUSH", "nothing that was forced is lost, and there is no hole")
def cut_synchronous_append(root: Path) -> int:
    return cut_at_every_call(root, SyncStore)


@row(KILL, "append, commit, roll, flush with a transient pool", "nothing that was committed is lost")
def kill_pooled_append(root: Path) -> int:
    return killed_at_every_call(root, PooledStore)


@row(CUT, "append, commit, roll, flush with a transient pool", "nothing that was forced is lost, and there is no hole")
def cut_pooled_append(root: Path) -> int:
    return cut_at_every_call(root, PooledStore)


def killed_at_every_call(root: Path, kind: type[ScriptedStore]) -> int:
    return at_every_call(
        root,
        opened,
        lambda store, calls: store.killed_in(append_roll_and_flush, calls),
        ScriptedStore.kill_and_open,
        kind,
    )


def cut_at_every_call(root: Path, kind: type[ScriptedStore]) -> int:
    return at_every_call(
        root,
        opened,
        lambda store, calls: store.killed_in(append_roll_and_flush, calls),
        ScriptedStore.cut_power_and_open,
        kind,
    )


@row(KILL, "snapshot, checkpoint, close", "the next opening finds the end by itself")
def kill_close(root: Path) -> int:
    def close_and_open(store: ScriptedStore) -> None:
        store.write_snapshot()
        close_without_views(store)
        store.abandon()
        store.open()

    return at_every_call(
        root,
        opened,
        lambda store, calls: store.killed_in(close_and_open, calls),
        ScriptedStore.kill_and_open,
    )


@row(KILL, "creation of a new store", "the next opening makes it")
def kill_making(root: Path) -> int:
    return at_every_call(root, lambda store: None, lambda store, calls: not store.try_open(calls), ScriptedStore.open)


@row(CUT, "creation of a new store", "the next opening makes it")
def cut_making(root: Path) -> int:
    return at_every_call(
        root,
        lambda store: None,
        lambda store, calls: not store.try_open(calls),
        ScriptedStore.cut_power_and_open,
    )


def crashed(store: ScriptedStore) -> None:
    """A store whose writer was killed, with a torn record after its end."""
    opened(store)
    store.work_all(4)
    store.help_log()
    end = store.store.appended
    store.abandon()
    overwrite(store.directory, end + 4, b"\xda\xa3\x20\xa7" + b"torn" * 20)


def powerless(store: ScriptedStore) -> None:
    """A store whose machine lost power."""
    opened(store)
    store.work_all(4)
    store.put_many(20)
    store.abandon()
    store.disk.cut()
    store.clock.boot += 1


@row(KILL, "recovery after a kill", "the next recovery finds the same end")
def kill_recovery(root: Path) -> int:
    return at_every_call(root, crashed, lambda store, calls: not store.try_open(calls), ScriptedStore.open)


@row(KILL, "recovery after a power cut", "what a power cut took is not taken for damage")
def kill_recovery_after_power_cut(root: Path) -> int:
    return at_every_call(root, powerless, lambda store, calls: not store.try_open(calls), ScriptedStore.open)


@row(CUT, "recovery after a power cut", "what was durable before the first cut is there after the second")
def cut_recovery(root: Path) -> int:
    return at_every_call(
        root,
        powerless,
        lambda store, calls: not store.try_open(calls),
        ScriptedStore.cut_power_and_open,
    )


def kill_dispatcher(root: Path, name: str, act: Callable[[ScriptedStore], None]) -> int:
    """Kill one dispatcher in each call of *act*."""

    def killed(store: ScriptedStore, calls: int) -> bool:
        member = store.member(name)
        store.work(member, 1)
        assert member.files is not None
        member.files.calls_left = calls
        act(store)
        if member.files is not None:
            member.files.calls_left = None
        return store.faults["dispatcher killed in a file call"] > 0

    return at_every_call(root, opened, killed, lambda store: None)


def dispatch_and_flush(name: str) -> Callable[[ScriptedStore], None]:
    def act(store: ScriptedStore) -> None:
        for _ in range(3):
            store.put_many(6)
            store.clock.advance(1.0)
            store.work(store.member(name), 4)

    return act


@row(KILL, "consume queue: dispatch, flush", "its queues are what the log says")
def kill_consume_queue(root: Path) -> int:
    return kill_dispatcher(root, "consume_queue", dispatch_and_flush("consume_queue"))


@row(KILL, "index: dispatch, flush", "its entries and slots are what the log says")
def kill_index(root: Path) -> int:
    return kill_dispatcher(root, "index", dispatch_and_flush("index"))


def rebuild(name: str) -> Callable[[ScriptedStore], None]:
    def act(store: ScriptedStore) -> None:
        member = store.member(name)
        assert member.loop is not None
        try:
            member.loop.rebuild(RebuildNeeded())
        except Killed:
            store.faults["dispatcher killed in a file call"] += 1
            store.end_dispatcher(member)
        for _ in range(4):
            store.clock.advance(1.0)
            store.work(store.member(name), 4)

    return act


@row(KILL, "rebuild of a view", "the view is what the log says")
def kill_rebuild(root: Path) -> int:
    return kill_dispatcher(root / "queue", "consume_queue", rebuild("consume_queue")) + kill_dispatcher(
        root / "index", "index", rebuild("index")
    )


@row(KILL, "removal of an old segment", "log and views begin where the log does")
def kill_retention(root: Path) -> int:
    def many(store: ScriptedStore) -> None:
        opened(store)
        store.put_many(20)
        store.verify()

    def remove(store: ScriptedStore) -> None:
        store.remove_segment()
        store.remove_segment()

    return at_every_call(root, many, lambda store, calls: store.killed_in(remove, calls), ScriptedStore.kill_and_open)


@row("Disk refuses to force", "log", "the store takes nothing more and says why; nothing forced before is lost")
def refuse_force_of_log(root: Path) -> int:
    for number in range(12):
        store = ScriptedStore(root / str(number), seed=number)
        try:
            opened(store)
            store.put_many(number)
            store.disk.force_error = errno.EIO
            store.clock.advance(12.0)
            store.flush()
            store.disk.force_error = None
            assert store.store.state == "READ_ONLY"
            assert "Input/output error" in str(store.store.reason)
            with pytest.raises(StoreReadOnly, match="could not be forced"):
                store.store.put(store.message())
            store.cut_power_and_open()
            store.settle()
        finally:
            store.abandon()
    return 12


@row("Disk refuses to force", "view", "the dispatcher begins again from its durable cursor, and nothing else stops")
def refuse_force_of_view(root: Path) -> int:
    for name in ("consume_queue", "index"):
        store = ScriptedStore(root / name)
        try:
            opened(store)
            member = store.member(name)
            store.work(member, 3)
            store.disk.force_error = errno.EIO
            store.clock.advance(1.0)
            with pytest.raises(OSError, match="Input/output error"):
                store.work(member, 3)
            store.disk.force_error = None
            store.end_dispatcher(member)
            store.settle()
        finally:
            store.abandon()
    return 2


@row(
    "Disk full",
    "append and roll",
    "the put is refused, the reason given, nothing stored; once there is space, it continues",
)
def fill_log(root: Path) -> int:
    count = 0
    for number in range(12):
        store = ScriptedStore(root / str(number), seed=number)
        try:
            opened(store)
            store.disk.full = True
            end = store.store.appended
            refusal = ""
            for _ in range(20):
                end = store.store.appended
                store.maybe_stored = [store.message()]
                try:
                    store.store.appender.append_batch(store.maybe_stored)
                except StoreFull as error:
                    refusal = str(error)
                    break
                store.take_over()
            assert "No space left" in refusal
            assert store.store.appended == end
            store.maybe_stored = []
            store.disk.full = False
            store.settle()
            count += 1
        finally:
            store.abandon()
    return count


def fill_view(root: Path, name: str) -> int:
    """Fill the disk before work item *number* of a dispatcher."""
    waited = 0
    for number in range(8):
        store = ScriptedStore(root / str(number), seed=number)
        try:
            opened(store)
            member = store.member(name)
            for _ in range(number):
                store.put_many(2)
                store.clock.advance(1.0)
                store.work(member, 1)
            store.disk.full = True
            for _ in range(6):
                store.clock.advance(3.0)
                store.work(member, 2)
            error = member.cell.error
            if error is not None:
                waited += 1
                assert "No space left" in error
            assert store.store.state == "RUNNING"
            store.disk.full = False
            for _ in range(4):
                store.clock.advance(6.0)
                store.work(member, 4)
            assert member.cell.error is None
            store.settle()
        finally:
            store.abandon()
    return waited


@row(
    "Disk full",
    "consume queue",
    "it waits, its status has the reason, and it continues once there is space; puts continue",
)
def fill_consume_queue(root: Path) -> int:
    return fill_view(root, "consume_queue")


@row("Disk full", "index", "it waits, its status has the reason, and it continues once there is space; puts continue")
def fill_index(root: Path) -> int:
    return fill_view(root, "index")


@contextmanager
def unreadable(name: str) -> Iterator[None]:
    """Make reads of the files with this name fail."""
    pread = os.pread

    def failing(descriptor: int, size: int, at: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(name):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(descriptor, size, at)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pread", failing)
        yield


@row("Disk cannot read", "log, in a recovery", "the opening is refused and names the place")
def refuse_read(root: Path) -> int:
    store = root / "store"
    writer = open_store(store, files=UnforcedFiles())
    for _ in range(20):
        writer.put(message_of_size(500))
    drop(writer)
    names = sorted(path.name for path in (store / "commitlog").iterdir())[:2]
    for name in names:
        with unreadable(name), pytest.raises(StoreError, match=r"cannot read|Input/output"):
            open_store(store, files=UnforcedFiles())
    writer = open_store(store, files=UnforcedFiles())
    writer.close(views_complete=False)
    assert len(records(store)) == 20
    return len(names)


@contextmanager
def limited(kind: int, value: int) -> Iterator[None]:
    """Lower a limit of this process."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


@row("Limit of file sizes", "creation of a segment", "the put is refused and says why; without the limit it continues")
def limit_file_size(root: Path) -> int:
    return limit_segment(root, StoreFull, lambda: limited(resource.RLIMIT_FSIZE, SEGMENT_SIZE - 1))


@row("Limit of open files", "creation of a segment", "the put is refused and says why; without the limit it continues")
def limit_file_count(root: Path) -> int:
    return limit_segment(root, StoreError, lambda: limited(resource.RLIMIT_NOFILE, 3))


def limit_segment(root: Path, error: type[StoreError], limit: Callable[[], AbstractContextManager[None]]) -> int:
    """Put until the next segment is due under *limit*."""
    writer = MessageStore(root / "store", small_settings(), clock=ManualClock(), threads=HeldThreads())
    refusal = ""
    with limit():
        # Two fit into the current segment and, if it was created in advance, two into the next one.
        for _ in range(5):
            end = writer.appended
            try:
                writer.put(message_of_size(1500))
            except error as refused:
                refusal = str(refused)
                break
    assert "segment cannot be made" in refusal
    assert writer.appended == end
    assert writer.put(message_of_size(1500)).commit_log_offset >= end
    writer.close(views_complete=False)
    return 1


@row("Clock goes back or forward", "between puts", "store times never go back; nothing is lost, removed or put twice")
def jump_clock(root: Path) -> int:
    jumps = (-86_400_000, 5_000, -1, 86_400_000, -5_000, 1)
    store = ScriptedStore(root)
    try:
        opened(store)
        for jump in jumps:
            store.clock.ms += jump
            store.put_many(3)
            store.verify()
            store.kill_and_open()
        store.settle()
        timestamps = [record.store_timestamp for record in records(store.directory)]
        assert timestamps == sorted(timestamps)
    finally:
        store.abandon()
    return len(jumps)


@row(
    "Clock runs ahead for a moment",
    "while retention looks: idle, with puts, at an opening",
    "no segment goes, and the status says that the clocks disagree",
)
def run_ahead(root: Path) -> int:
    count = 0
    for hours in (2, 100, 10_000):
        for moment in ("idle", "puts", "opening"):
            store = ScriptedStore(root / f"{moment}-{hours}")
            store.settings = msgspec.structs.replace(store.settings, delete_when=";".join(map(str, range(24))))
            try:
                opened(store)
                append_roll_and_flush(store)
                for path in (store.directory / "commitlog").iterdir():
                    os.utime(path, (0, store.clock.ms / 1000))
                if moment == "opening":
                    store.clock.ms += hours * HOUR_MS
                    store.kill_and_open()
                else:
                    store.store.log_clock.now_ms()
                    store.clock.ms += hours * HOUR_MS
                    store.put_many(4 if moment == "puts" else 0)
                    assert "clock disagrees" in (store.store.notice or "")
                # By the wall clock they are old.
                asked = store.store.retention.plan(asked=True)
                assert [fate.goes for fate in asked[:1]] == [hours > store.settings.file_reserved_time]
                for _ in range(6):
                    store.clock.advance(1.0)
                    assert not any(fate.goes for fate in store.store.retention.plan(asked=False))
                store.clock.ms -= hours * HOUR_MS
                assert not any(fate.goes for fate in store.store.retention.plan(asked=False))
                assert "clock disagrees" not in (store.store.notice or "")
                store.verify()
                store.settle()
                count += 1
            finally:
                store.abandon()
    return count
