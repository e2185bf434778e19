"""The process of one dispatcher: from the supervisor's fork to its end. Imports exactly one plugin.

Only what a dispatcher needs stays open, only its own cell can be written, its streams are pipes to the supervisor, and
it is killed when the supervisor ends.
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

from reput.process.dispatcher.batch_bound import BatchSize
from reput.process.dispatcher.cursor_checks import StartRefused
from reput.process.dispatcher.dispatcher_loop import DispatcherLoop
from reput.process.dispatcher.hosted_loop import HostedLoop
from reput.process.dispatcher.states import Phase, StopMode
from reput.process.group.group_context import GroupContext
from reput.process.group.group_lock import GroupLock
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

# How the process says why it ended, with last words in its cell: an exception, or what trying again would not help.
# Every other status is a crash, and the latter are no numbers that a plugin would end itself with.
EXCEPTION_STATUS = 1
REFUSED_STATUS = 203
BROKEN_STATUS = 204
# Of what the plugin forked, which nobody waits for but the plugin.
FORKED_STATUS = 205


class ProcessTask(msgspec.Struct, frozen=True):
    """What one dispatcher's process is to do.

    Attributes:
        predecessors: slots of the enabled dispatchers that this one comes after.
        options: as they were given.
        root: below which the view is built.
        first_batch: bound of its first batch; None: no process was killed in the middle of one.
        log_descriptor: writing end of the pipe for log lines.
        print_descriptor: writing end of the pipe for what the plugin prints.
        nice: by how much its priority is lower than the writer's.
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
    """Be the dispatcher's process. Called in the child, right after the fork; never returns."""
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
        # Before there is a log; what is printed comes out there.
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        # Exit handlers were registered for the supervisor, threads of the plugin have no say any more.
        os._exit(status)


def confine_descriptors(memory: RingMemory, lock: GroupLock, task: ProcessTask) -> None:
    """Have new standard streams, and close everything that is not for this process."""
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
            # CPython takes an empty range that begins at 0 for all there are.
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
        """Return where the dispatcher stands, None before it has started."""
        return self.loop.cursor.commit_log_offset if self.loop is not None and self.loop.cursor.store_id else None

    def run(self) -> int:
        """Run until told to stop; return the exit status."""
        signal.set_wakeup_fd(-1)
        self.install_signals()
        # One thread computes; a pool of BLAS threads per dispatcher would only take memory.
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
        """Take up the supervisor's signals, and leave alone those that are meant for the owner's terminal."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(DRAIN_SIGNAL, self.on_signal)
        signal.signal(STOP_SIGNAL, self.on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {DRAIN_SIGNAL, STOP_SIGNAL})

    def take_back_process(self) -> None:
        """Undo what the plugin's import, or its start, has done to the process beside its own affairs.

        Libraries install handlers of their own, with which the supervisor could end this process no more. And a child
        that was forked and comes back here would be a second dispatcher of the same view.
        """
        if os.getpid() != self.pid:
            os._exit(FORKED_STATUS)
        self.install_signals()

    def on_signal(self, number: int, _: FrameType | None) -> None:
        """Take up the supervisor's wish, and have the loop look up from its parking."""
        self.stop = StopMode.DRAIN if number == DRAIN_SIGNAL else StopMode.NOW
        if self.loop is not None:
            self.loop.request_stop(self.stop)
        os.eventfd_write(self.memory.wake_descriptors[self.task.slot], 1)

    def dispatch(self, plugin: Plugin, description: DispatcherDescription, options: object) -> None:
        """Run the loop until it is finished."""
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
            slices.set_short(loop.is_awaited)
            if loop.gather_ms:
                reader.rest(loop.gather_ms)
            elif not work or loop.is_current():
                # Parking looks for frames itself, so another look before would cost those who have the processor next.
                wait = waiting()
                park(
                    wait.timeout,
                    frames=wait.frames,
                    durable=wait.durable,
                    predecessors=wait.predecessors,
                    progress=wait.progress,
                )

    def fail(self, what: str) -> None:
        """Say why the process ends, in its cell and in the log."""
        text = traceback.format_exc()
        with contextlib.suppress(Exception):
            self.cell.set_error(text)
        self.log.write(
            LogLine(
                time.time_ns() // 1_000_000,
                "ERROR",
                os.getpid(),
                self.entry.name,
                f"dispatcher {what}: dispatcher={self.entry.name} distribution={self.entry.distribution} "
                f"version={self.entry.version}",
                commit_log_offset=self.position(),
                exception=text,
            )
        )


def announce_running(log: PipeHandler, name: str) -> None:
    """Tell the supervisor that `start` has returned."""
    log.write(LogLine(time.time_ns() // 1_000_000, "INFO", os.getpid(), name, "running", event="running"))
