"""Trial: one view of a sample store, built step by step by the host's own loop, with a simulated clock.

A trial consists of lives, like those of a dispatcher's process: `begin` creates the dispatcher and calls `start`,
`take` gives it records, `end` flushes and closes it, `abandon` leaves it as a crash would. Its view has its own root,
laid out like a store; the sample store is only read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from reput.errors import DamagedStore
from reput.process.contract.sample_store import SampleStore, sample_settings
from reput.process.contract.view_content import read_view
from reput.process.contract.watched import CallLog, WatchedPlugin
from reput.process.dispatcher.batch_bound import BatchSize
from reput.process.dispatcher.hosted_loop import HostedLoop
from reput.process.dispatcher.states import StopMode
from reput.process.frames.frame_publisher import FramePublisher
from reput.process.group.group_context import GroupContext
from reput.process.owner.inline_ring import InlineCell, InlineReader, InlineRing
from reput.process.plugin.catalogue import select_dispatchers
from reput.process.plugin.description import lies_elsewhere
from reput.process.plugin.plugin import convert_options, load_plugin
from reput.process.views.dead_letters import DeadLetters
from reput.settings import Settings
from reput.store.writer.publisher import AppendedRecords
from reput_hooks import RebuildNeeded
from reput_hooks.sample import Sample

__all__ = ["Subject", "Trial"]

RING_CAPACITY = 1 << 24
WORK_MAX = 10_000
RETRY_MAX = 100


class Subject:
    """The dispatcher under test: its plugin, imported in this process, and the author's declarations.

    Args:
        settings: including the dispatcher's options.

    Raises:
        ConfigError: it is not installed, or the options are wrong.
        Exception: raised by the plugin's import.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        samples: Sequence[Sample],
    ) -> None:
        (self.entry,) = select_dispatchers([name], settings.dispatcher_plugins)
        self.name = name
        self.settings = sample_settings(settings)
        self.samples = samples
        self.plugin = load_plugin(name, self.entry.module)
        self.description = self.plugin.describe()
        self.options = convert_options(name, settings.dispatcher_options.get(name, {}), self.description.options)
        self.view_elsewhere = lies_elsewhere(self.description, self.options)


class TrialClock:
    """A clock that moves only when the trial advances it."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def now(self) -> float:
        """Return the current time."""
        return self.seconds


class Trial:
    """The view of *subject* under *root*, built from the log of *store*.

    Attributes:
        calls: the calls to the plugin, over all lives.
        appended: how many records of the store's log the dispatcher can see.
    """

    def __init__(self, subject: Subject, store: SampleStore, root: Path, calls: CallLog | None = None) -> None:
        self.subject = subject
        self.store = store
        self.root = root
        self.calls = calls if calls is not None else CallLog()
        self.clock = TrialClock()
        self.pause = threading.Event()
        self.appended = 0
        self.commit_log_offset_min = store.begin
        self.hosted: HostedLoop | None = None
        self.retry_count = 0
        self.context = GroupContext(store.directory, store.store_id, subject.settings, root)

    # A life.

    def begin(self, appended: int | None = None, first_batch: BatchSize | None = None) -> None:
        """Start a life when the log has *appended* records; *first_batch* as in `HostedLoop`."""
        if appended is not None:
            self.appended = appended
        store, end = self.store, self.store.bounds[self.appended]
        self.ring = InlineRing(
            capacity=RING_CAPACITY,
            appended=end,
            durable=end,
            commit_log_offset_min=self.commit_log_offset_min,
            epoch=store.epoch,
            ordinal=self.appended,
        )
        self.publisher = FramePublisher(self.ring, store.epoch)
        self.cell = InlineCell(self.subject.name, 0, self.ring)
        self.hosted = HostedLoop(
            self.context,
            WatchedPlugin(self.subject.plugin, self.calls),
            self.subject.description,
            self.subject.options,
            root=self.root,
            reader=InlineReader(self.ring, self.cell),
            cell=self.cell,
            first_batch=first_batch,
            now=self.clock.now,
        )
        self.work()

    def take(self, record_count: int) -> None:
        """Append the next *record_count* records, and let the dispatcher take them in."""
        begin = self.appended
        self.appended = min(begin + record_count, len(self.store.bounds) - 1)
        at, ordinal = self.store.bounds[begin], begin
        for scanned in self.store.ranges(at, self.store.bounds[self.appended]):
            columns = scanned.columns
            ordinal += len(columns)
            self.publisher.publish(
                AppendedRecords(
                    at, scanned.end, scanned.store_timestamp, ordinal, columns.queues, columns.rows, columns.texts
                )
            )
            at = scanned.end
        self.publisher.durable(at)
        self.work()

    def take_all(self, sizes: Iterable[int] = ()) -> None:
        """Take the rest of the log: batches of *sizes* records, then all remaining records at once."""
        for size in sizes:
            if self.appended == len(self.store.bounds) - 1:
                break
            self.take(size)
        self.take(len(self.store.bounds))

    def flush(self) -> None:
        """Let the flush interval pass."""
        self.clock.seconds += 1 + self.context.settings.dispatcher_flush_interval / 1000
        self.work()

    def delete_topic(self, topic: str) -> None:
        """Report the deletion of a topic now."""
        self.publisher.delete_topic(topic, self.store.bounds[self.appended], self.appended)
        self.work()

    def expire(self, commit_log_offset_min: int) -> None:
        """Report that the log was trimmed."""
        self.commit_log_offset_min = commit_log_offset_min
        self.publisher.expire(commit_log_offset_min, self.store.bounds[self.appended], self.appended)
        self.work()

    def rebuild(self) -> None:
        """Have the view emptied and rebuilt."""
        self.running.loop.rebuild(RebuildNeeded())
        self.work()

    def end(self) -> None:
        """Drain, flush and close."""
        self.running.loop.request_stop(StopMode.DRAIN)
        self.work()
        self.running.close()
        self.hosted = None

    def abandon(self) -> None:
        """End the life without a flush, as after an exception; close its files, because this process continues."""
        if self.running.loop.dispatcher is not None:
            self.running.loop.dispatcher.close()
        self.running.close()
        self.hosted = None

    @property
    def running(self) -> HostedLoop:
        """The current life."""
        assert self.hosted is not None, "the trial has no life now"
        return self.hosted

    def work(self) -> None:
        """Run the loop until there is no work left.

        Raises:
            AssertionError: it never comes to rest, or its cursor is not at a record.
            Exception: raised by the plugin.
        """
        loop = self.running.loop
        for _ in range(WORK_MAX):
            if loop.do_work():
                if loop.finished:
                    return
            elif loop.retry is not None and self.retry_count < RETRY_MAX:
                self.retry_count += 1
                self.clock.seconds = loop.retry.at
            elif loop.flushing.preparing:
                self.pause.wait(loop.waiting().timeout)
            else:
                break
        assert loop.retry is None, f"RetryLater was raised {self.retry_count} times for the same batch"
        if loop.reading.damage is not None:
            raise DamagedStore(
                f"the dispatcher's cursor is not at a record: commit_log_offset={loop.cursor.commit_log_offset}"
            )
        end = self.store.bounds[self.appended]
        assert loop.cursor.commit_log_offset == end, (
            f"the view makes no progress: commit_log_offset={loop.cursor.commit_log_offset} appended={end}"
        )

    # Results.

    def folders(self) -> list[Path]:
        """Return the folders of the view: the plugin's own first, then those it declares in the store's root."""
        own = self.root / "reput" / "views" / self.subject.name
        return [own, *(self.root / folder for folder in self.subject.description.store_folders)]

    def view(self) -> object:
        """Return the content of the view on disk."""
        folders = self.folders()
        found = self.subject.plugin.read_view(folders)
        return read_view(folders) if found is None else found

    def rejected(self) -> list[tuple[int, str]]:
        """Return commit-log offset and reason of every dead letter."""
        letters = DeadLetters(self.root, self.subject.name).lines.read()
        return [(letter.commit_log_offset, letter.reason) for letter in letters]
