"""The process of one dispatcher: from the supervisor's fork to its end. Imports exactly one plugin.

Only the descriptors it needs stay open, only its own cell is writable, its streams are pipes to the supervisor, and
the kernel kills it when the supervisor ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec

from reput.errors import NotAStore
from reput.process.dispatcher.batch_bound import BatchSize
from reput.process.dispatcher.cursor_checks import StartRefused
from reput.process.dispatcher.dispatcher_loop import DispatcherLoop
from reput.process.dispatcher.hosted_loop import HostedLoop
from reput.process.dispatcher.states import Phase, StopMode
from reput.process.group.group_context import GroupContext
from reput.process.group.group_lock import GroupLock
from reput.process.logs.exception_text import exception_text
from reput.process.logs.log_pipe import LogLine, PipeHandler, install
from reput.process.plugin.catalogue import CatalogueEntry
from reput.process.plugin.plugin import Plugin, convert_options, load_plugin
from reput.process.system.parent_death import die_with_parent
from reput.process.system.time_slices import TimeSlices
from reput.ring import Cell, RingMemory, RingReader
from reput_hooks import DispatcherDescription

__all__ = [
    "BROKEN_STATUS",
    "DRAIN_SIGNAL",
    "EXCEPTION_STATUS",
    "REFUSED_STATUS",
    "STOP_SIGNAL",
    "ProcessTask",
    "run_dispatcher",
]

DRAIN_SIGNAL = signal.SIGTERM
STOP_SIGNAL = signal.SIGUSR1

# Exit statuses, with the error text in the cell: an exception, or a failure that a retry would not fix. Every other
# status is a crash. A plugin is unlikely to exit with the two high numbers itself.
EXCEPTION_STATUS = 1
REFUSED_STATUS = 203
BROKEN_STATUS = 204
# Exit status of a process that the plugin forked; only the plugin waits for it.
FORKED_STATUS = 205


class ProcessTask(msgspec.Struct, frozen=True):
    """The task of one dispatcher's process.

    Attributes:
        predecessors: slots of the enabled dispatchers that this one comes after.
        options: as configured.
        root: the directory below which the view is built.
        first_batch: bound of its first batch; None: no process was killed in the middle of one.
        log_descriptor: writing end of the pipe for log lines.
        print_descriptor: writing end of the pipe for the plugin's printed output.
        nice: niceness relative to the writer.
    """

    entry: CatalogueEntry
    slot: int
    predecessors: tuple[int, ...]
    options: dict[str, object]
    root: Path
    log_descriptor: int
    print_descriptor: int
    first_batch: BatchSize | None = None
    nice: int = 0


def run_dispatcher(
    context: GroupContext, memory: RingMemory, lock: GroupLock, task: ProcessTask, supervisor_pid: int
) -> NoReturn:
    """Run the dispatcher's process. Called in the child, right after the fork; never returns."""
    status = EXCEPTION_STATUS
    try:
        die_with_parent(supervisor_pid)
        confine_descriptors(memory, lock, task)
        lock.withhold()
        os.nice(task.nice)
        cell = memory.confine(task.slot)
        cell.set_phase(Phase.START)
        process = DispatcherProcess(context, memory, cell, task)
        status = process.run()
    except BaseException:
        # The log may not exist yet; the supervisor logs what is printed.
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        # Exit handlers belong to the supervisor, and threads of the plugin must not delay the end.
        os._exit(status)


def confine_descriptors(memory: RingMemory, lock: GroupLock, task: ProcessTask) -> None:
    """Replace the standard streams, and close all descriptors that this process does not need."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(task.print_descriptor, 1)
    os.dup2(task.print_descriptor, 2)
    kept = {0, 1, 2, task.log_descriptor, *memory.descriptors}
    if lock.descriptor is not None:
        kept.add(lock.descriptor)
    begin = 0
    for descriptor in sorted(kept):
        if begin < descriptor:
            # CPython treats an empty range that begins at 0 as all descriptors.
            os.closerange(begin, descriptor)
        begin = descriptor + 1
    os.closerange(begin, os.sysconf("SC_OPEN_MAX"))


class DispatcherProcess:
    """The dispatcher, its loop and its signals."""

    def __init__(self, context: GroupContext, memory: RingMemory, cell: Cell, task: ProcessTask) -> None:
        self.context = context
        self.memory = memory
        self.cell = cell
        self.task = task
        self.entry = task.entry
        self.pid = os.getpid()
        self.loop: DispatcherLoop | None = None
        self.stop: StopMode | None = None
        self.log = install(task.log_descriptor, self.entry.name, self.position)

    def position(self) -> int | None:
        """Return the dispatcher's position, None before it has started."""
        return self.loop.cursor.commit_log_offset if self.loop is not None and self.loop.cursor.store_id else None

    def run(self) -> int:
        """Run until told to stop; return the exit status."""
        signal.set_wakeup_fd(-1)
        self.install_signals()
        # One thread computes; a BLAS thread pool per dispatcher would only cost memory.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        try:
            plugin = load_plugin(self.entry.name, self.entry.module)
            self.take_back_process()
            description = plugin.describe()
            options = convert_options(self.entry.name, self.task.options, description.options)
        except BaseException:
            self.fail("cannot be imported")
            return BROKEN_STATUS
        try:
            self.dispatch(plugin, description, options)
        except StartRefused:
            self.fail("refused")
            return REFUSED_STATUS
        except BaseException:
            self.fail("failed")
            return EXCEPTION_STATUS
        return 0

    def install_signals(self) -> None:
        """Handle the supervisor's signals, and ignore SIGHUP and SIGINT."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(DRAIN_SIGNAL, self.on_signal)
        signal.signal(STOP_SIGNAL, self.on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {DRAIN_SIGNAL, STOP_SIGNAL})

    def take_back_process(self) -> None:
        """Undo side effects of the plugin's import, or of its start, on the process.

        Libraries may install their own signal handlers, and then the supervisor could not stop this process. And a
        forked child that returns here would be a second dispatcher of the same view.
        """
        if os.getpid() != self.pid:
            os._exit(FORKED_STATUS)
        self.install_signals()

    def on_signal(self, number: int, _: FrameType | None) -> None:
        """Pass the supervisor's stop request to the loop, and wake it."""
        self.stop = StopMode.DRAIN if number == DRAIN_SIGNAL else StopMode.NOW
        if self.loop is not None:
            self.loop.request_stop(self.stop)
        os.eventfd_write(self.memory.wake_descriptors[self.task.slot], 1)

    def dispatch(self, plugin: Plugin, description: DispatcherDescription, options: object) -> None:
        """Run the loop until it is finished.

        Raises:
            NotAStore: the store was moved while it was open; a view that is made here would begin another one.
        """
        if not self.context.store_directory.is_dir():
            raise NotAStore(f"the store's directory is gone: store={self.context.store_directory}")
        reader = RingReader(self.memory, self.cell)
        hosted = HostedLoop(
            self.context,
            plugin,
            description,
            options,
            root=self.task.root,
            reader=reader,
            cell=self.cell,
            predecessors=[self.memory.view(slot) for slot in self.task.predecessors],
            builds_anew=self.task.root != self.context.store_directory,
            first_batch=self.task.first_batch,
        )
        loop = self.loop = hosted.loop
        if self.stop is not None:
            loop.request_stop(self.stop)
        loop.do_work()
        self.take_back_process()
        announce_running(self.log, self.entry.name)
        slices = TimeSlices()
        do_work, waiting, park = loop.do_work, loop.waiting, reader.park
        while not loop.finished:
            work = do_work()
            slices.set_short(loop.gathering.is_awaited)
            if loop.gathering.ms:
                reader.rest(loop.gathering.ms)
            elif not work or loop.is_current():
                # `park` checks for frames itself; a check here would only delay the next user of the processor.
                wait = waiting()
                park(
                    wait.timeout,
                    frames=wait.frames,
                    durable=wait.durable,
                    predecessors=wait.predecessors,
                    progress=wait.progress,
                )

    def fail(self, what: str) -> None:
        """Report why the process ends, in its cell and in the log."""
        error = sys.exception()
        assert error is not None
        with contextlib.suppress(Exception):
            self.cell.set_error(exception_text(error))
        self.log.write(
            LogLine(
                time.time_ns() // 1_000_000,
                "ERROR",
                os.getpid(),
                self.entry.name,
                f"dispatcher {what}: dispatcher={self.entry.name} distribution={self.entry.distribution} "
                f"version={self.entry.version}",
                commit_log_offset=self.position(),
                exception=traceback.format_exc(),
            )
        )


def announce_running(log: PipeHandler, name: str) -> None:
    """Tell the supervisor that `start` has returned."""
    log.write(LogLine(time.time_ns() // 1_000_000, "INFO", os.getpid(), name, "running", event="running"))
