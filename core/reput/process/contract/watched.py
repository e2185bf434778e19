"""WatchedPlugin: wraps a plugin to record and count its calls, and to crash the process before any of them.

Calls that the plugin itself makes count, too: the process may crash before each call that opens, writes, forces,
renames or removes a file, or works on a database. Python's profiling hook reports these calls, so neither plugin nor
library is changed. Calls in the plugin's own threads are not counted, because their order differs from run to run; but
such a thread may force to disk what the dispatcher has written.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from reput.process.plugin.plugin import Plugin
from reput_hooks import (
    CommitLogDispatcher,
    Cursor,
    DispatchBatch,
    DispatcherContext,
    DispatchRequest,
    LogReader,
    Record,
)

__all__ = ["CRASHED", "CallLog", "WatchedPlugin"]

# Exit status of an intended crash.
CRASHED = 86

WRITES = frozenset({"write", "writelines", "pwrite", "writev", "pwritev", "sendfile", "copy_file_range"})
FORCES = frozenset({"fsync", "fdatasync", "sync", "commit", "msync"})
FILE_CALLS = (
    WRITES
    | FORCES
    | frozenset({"open", "close", "flush", "truncate", "ftruncate", "posix_fallocate"})
    | frozenset({"rename", "replace", "link", "symlink", "unlink", "remove", "mkdir", "rmdir"})
    | frozenset({"connect", "execute", "executemany", "executescript", "rollback", "sendall", "send"})
)


class CallLog:
    """The calls to a plugin, and the calls that it makes.

    Args:
        crash_at: number of the call before which the process crashes; None: it does not.
        fail_read_at: number of the log read that fails; None: none fails.
        on_durable: called with each cursor that `flush` returned.

    Attributes:
        count: calls so far.
        last: name of the last call.
        wrote, forced: whether anything was written, and forced to disk, since `flush` last returned a cursor.
        unforced: cursors that `flush` returned after writes without forcing any of them to disk.
        batches: begin, end and record count of each batch that was taken in.
        seconds_max: longest time of a batch, or of a part of it up to `DispatcherContext.alive`.
        started_at: results of `start`. durable: results of `flush` other than None.
    """

    def __init__(
        self,
        crash_at: int | None = None,
        fail_read_at: int | None = None,
        on_durable: Callable[[int], None] = lambda commit_log_offset: None,
    ) -> None:
        self.crash_at = crash_at
        self.fail_read_at = fail_read_at
        self.on_durable = on_durable
        self.count = 0
        self.last = ""
        self.read_count = 0
        self.wrote = self.forced = False
        self.unforced: list[int] = []
        self.batches: list[tuple[int, int, int]] = []
        self.seconds_max = self.worked_since = 0.0
        self.started_at: list[int | None] = []
        self.durable: list[int] = []
        self.expired: list[int] = []

    def call(self, name: str) -> None:
        """Count one call; crash before it if it is call number *crash_at*."""
        if self.count == self.crash_at:
            os._exit(CRASHED)
        self.count += 1
        self.last = name
        if name in WRITES:
            self.wrote = True
        elif name in FORCES:
            self.forced = True

    def alive(self) -> None:
        """Record the duration of a batch, or of a part of it."""
        now = time.monotonic()
        self.seconds_max = max(self.seconds_max, now - self.worked_since)
        self.worked_since = now

    def flushed(self, commit_log_offset: int) -> None:
        """Record that `flush` returned a cursor."""
        if self.wrote and not self.forced:
            self.unforced.append(commit_log_offset)
        self.wrote = self.forced = False
        self.durable.append(commit_log_offset)
        self.on_durable(commit_log_offset)

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        """Handle Python's profiling event for calls of C functions."""
        if event == "c_call" and (name := argument.__name__) in FILE_CALLS:
            self.call(name)

    def profile_thread(self, frame: FrameType, event: str, argument: Any) -> None:
        """Take up what Python tells of such calls in a thread that the plugin has started."""
        if event == "c_call" and argument.__name__ in FORCES:
            self.forced = True

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Mark a call to the plugin as in progress."""
        self.call(name)
        before, before_of_threads = sys.getprofile(), threading.getprofile()
        sys.setprofile(self.profile)
        threading.setprofile(self.profile_thread)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(before_of_threads)


class WatchedPlugin(Plugin):
    """*plugin*, with dispatchers and contexts watched by *calls*."""

    def __init__(self, plugin: Plugin, calls: CallLog) -> None:
        super().__init__(plugin.name, plugin.manager)
        self.calls = calls

    def create(self, context: DispatcherContext) -> CommitLogDispatcher:
        """Return the plugin's dispatcher, watched."""
        context.log = WatchedLog(context.log, self.calls)
        say_alive = context.alive

        def alive() -> None:
            self.calls.alive()
            say_alive()

        context.alive = alive  # type: ignore[method-assign]
        with self.calls.inside("create"):
            dispatcher = super().create(context)
        return WatchedDispatcher(dispatcher, self.calls)


class WatchedLog:
    """The log of a watched plugin; one read may fail."""

    def __init__(self, log: LogReader, calls: CallLog) -> None:
        self.log = log
        self.calls = calls

    def before_read(self) -> None:
        """Count one read."""
        self.calls.read_count += 1
        if self.calls.read_count == self.calls.fail_read_at:
            raise OSError("the log could not be read: a fault injected by the contract suite")

    def read(self, request: DispatchRequest) -> Record:
        self.before_read()
        return self.log.read(request)

    def read_many(self, batch: Iterable[DispatchRequest]) -> list[Record]:
        self.before_read()
        return self.log.read_many(batch)


class WatchedDispatcher(CommitLogDispatcher):
    """*dispatcher*, with every call recorded."""

    def __init__(self, dispatcher: CommitLogDispatcher, calls: CallLog) -> None:
        self.dispatcher = dispatcher
        self.calls = calls

    def start(self) -> Cursor | None:
        with self.calls.inside("start"):
            cursor = self.dispatcher.start()
        self.calls.started_at.append(None if cursor is None else cursor.commit_log_offset)
        return cursor

    def dispatch(self, batch: DispatchBatch) -> None:
        self.calls.worked_since = time.monotonic()
        with self.calls.inside("dispatch"):
            self.dispatcher.dispatch(batch)
        self.calls.alive()
        self.calls.batches.append((batch.commit_log_offset, batch.end.commit_log_offset, len(batch)))

    def replay(self, batch: DispatchBatch) -> None:
        with self.calls.inside("replay"):
            self.dispatcher.replay(batch)

    def prepare_flush(self) -> bool:
        if type(self.dispatcher).prepare_flush is CommitLogDispatcher.prepare_flush:
            # The base class's method makes no call in which a process could crash.
            return False
        with self.calls.inside("prepare_flush"):
            return self.dispatcher.prepare_flush()

    def flush(self) -> Cursor | None:
        with self.calls.inside("flush"):
            cursor = self.dispatcher.flush()
        if cursor is not None:
            self.calls.flushed(cursor.commit_log_offset)
        return cursor

    def truncate(self, cursor: Cursor) -> None:
        with self.calls.inside("truncate"):
            self.dispatcher.truncate(cursor)

    def expire(self, commit_log_offset_min: int) -> None:
        self.calls.expired.append(commit_log_offset_min)
        with self.calls.inside("expire"):
            self.dispatcher.expire(commit_log_offset_min)

    def delete_topic(self, topic: str) -> None:
        with self.calls.inside("delete_topic"):
            self.dispatcher.delete_topic(topic)

    def close(self) -> None:
        with self.calls.inside("close"):
            self.dispatcher.close()
