"""The dispatcher `consume_queue`: what consumers read, ``consumequeue/{topic}/{queueId}/``.

The cursor stands in one file with the ends of all queues. At a start the queues are brought back to those ends, and
what lies behind is zeroed and comes again: units are written at their own places, so the bytes are the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from reput.errors import DamagedStore
from reput.store.consume_queue_builder import (
    ConsumeQueueBuilder,
    ConsumeQueueState,
    shown_queue_file_size,
)
from reput.store.consume_queue_ext_addresses import ExtAddresses
from reput.store.files import Files, Threads
from reput.store.identity import was_clean_when_adopted
from reput.store.sealed_file import read_sealed, seal
from reput.store.shortages import retry_on_shortage
from reput.store.topic_config_manager import TopicConfigManager
from reput.store.work_aside import WorkAside
from reput_hooks import (
    CommitLogDispatcher,
    Cursor,
    DispatchBatch,
    DispatcherContext,
    DispatcherDescription,
    RebuildNeeded,
    hookimpl,
)

__all__ = ["ConsumeQueueDispatcher"]

FOLDER = "consumequeue"
EXT_FOLDER = "consumequeue_ext"
# How long the next batch waits for a flush that goes on beside, seconds.
FLUSH_LOOK_S = 0.0005
# What the dispatcher of the ext files writes as its generation when it takes over those of a RocketMQ.
ADOPTED = "adopted"


class ConsumeQueueDispatcher(CommitLogDispatcher):
    """Builds the consume queues of one store."""

    def __init__(self, context: DispatcherContext, files: Files | None = None, threads: Threads | None = None) -> None:
        self.context = context
        self.files = files or Files()
        self.threads = threads or Threads()
        self.path = context.directory / "cursor"
        folder = context.folder(FOLDER)
        # The files of a store show their size; what the settings say is for a store without any.
        file_size = shown_queue_file_size(folder) or context.settings["mapped_file_size_consume_queue"]
        self.left_alone = context.counter("left_alone")
        self.batch: DispatchBatch | None = None
        self.ext_folder = ext_folder = folder.with_name(EXT_FOLDER)
        ext_directory = context.directory.with_name("consume_queue_ext")
        ext_file_size = shown_queue_file_size(ext_folder) or context.settings["mapped_file_size_consume_queue_ext"]
        self.ext_path = str(ext_directory)
        self.addresses = ExtAddresses(ext_directory / "addresses", ext_folder, ext_file_size)
        self.ext_generation_path = str(ext_directory / "generation")
        self.ext_generation: str | None = None
        self.ext_generation_stamp = -1
        self.builder = ConsumeQueueBuilder(
            folder,
            file_size,
            files=self.files,
            has_batch_queue=self.has_batch_queue,
            refuse=self.reject,
        )
        self.end: Cursor | None = None
        # The flush that goes on beside, up to where the view is durable then, and whether it is known to be.
        self.flushing: WorkAside | None = None
        self.flushing_to: Cursor | None = None
        self.flushed = False

    def start(self) -> Cursor | None:
        """Go on behind the durable units; of a store that RocketMQ closed, behind the last of its units."""
        with self.rebuild_if_damaged(), retry_on_shortage("the view cannot be brought to its cursor"):
            state = read_sealed(self.path, ConsumeQueueState)
            if state is not None:
                self.builder.restore(state.queues)
                self.end = state.cursor
                self.ext_generation = state.ext_generation
                return self.end
            store = self.context.store_directory
            if was_clean_when_adopted(store):
                # Loads numpy, which all other starts do without.
                from reput.store.consume_queue_adoption import adopt_queues

                table, complete_to = adopt_queues(self.builder.directory, store, self.builder.file_size)
                if complete_to:
                    self.builder.restore(table)
                    # The addresses in it hold as long as the ext files are taken over, too.
                    self.ext_generation = ADOPTED if self.ext_folder.is_dir() else None
                    # As of the epoch in which reput found the store: a cut since then is made here, too.
                    self.end = Cursor(self.context.store_id, 1, complete_to, 0)
                    return self.flush()
            # A RocketMQ that was killed leaves queues that may lack any unit, so all of them are built again.
            self.builder.restore({})
        return None

    @contextmanager
    def rebuild_if_damaged(self) -> Iterator[None]:
        """Have the view built again where it is not what its cursor says: deleted, or replaced by an older copy."""
        try:
            yield
        except DamagedStore as error:
            self.context.logger.error("%s", error)
            raise RebuildNeeded from error

    def dispatch(self, batch: DispatchBatch) -> None:
        self.batch = batch
        # One look for each batch: mostly there are no ext files.
        ext_is_there = os.access(self.ext_path, os.F_OK)
        if ext_is_there:
            self.follow_ext()
        self.builder.addresses = self.addresses if ext_is_there else None
        with retry_on_shortage("units cannot be written"):
            self.builder.put(batch)
        if self.left_alone.value != self.builder.left_alone_count:
            self.left_alone.value = self.builder.left_alone_count
        self.end = batch.end

    def prepare_flush(self) -> bool:
        """Flush on a thread: on a disk that is busy with the log it takes long, in which no unit would be written."""
        try:
            if self.flushing is None:
                if self.end is None:
                    return False
                force = self.builder.begin_force()
                state = ConsumeQueueState(self.end, self.builder.table_to_force(), self.ext_generation)
                work = partial(self.force_and_keep, force, state)
                self.flushing_to = self.end
                self.flushing = WorkAside("reput-flush", work, self.threads)
            self.flushed = self.flushing.is_done(FLUSH_LOOK_S)
        except BaseException:
            self.flushing = None
            self.builder.abandon_force()
            raise
        return not self.flushed

    def force_and_keep(self, force: Callable[[], None], state: ConsumeQueueState) -> None:
        """Force what is in *state*, and only then write down that the view reaches so far."""
        force()
        self.keep(state)

    def flush(self) -> Cursor | None:
        if self.flushed:
            self.flushing, self.flushed = None, False
            self.builder.end_force()
            return self.flushing_to
        self.flush_all()
        return self.end

    def flush_all(self) -> None:
        """Make durable all that was dispatched."""
        self.await_flush()
        if self.end is not None:
            self.builder.force()
            self.keep(ConsumeQueueState(self.end, self.builder.table, self.ext_generation))

    def await_flush(self) -> None:
        """Have no flush going on beside.

        Raises:
            OSError: it failed.
        """
        flushing, self.flushing, self.flushed = self.flushing, None, False
        if flushing is not None:
            flushing.is_done(None)

    def keep(self, state: ConsumeQueueState) -> None:
        """Write the cursor, and how far the queues reach there, durably."""
        with retry_on_shortage("the cursor cannot be written"):
            self.files.replace(self.path, seal(state))

    def truncate(self, cursor: Cursor) -> None:
        # The shorter ends are kept before anything is cut: a crash in the middle is then one behind them.
        self.await_flush()
        self.builder.force()
        table = self.builder.table_below(cursor.commit_log_offset)
        self.end = cursor
        self.keep(ConsumeQueueState(cursor, table, self.ext_generation))
        with self.rebuild_if_damaged(), retry_on_shortage("the view cannot be brought to its cursor"):
            self.builder.restore(table)

    def expire(self, commit_log_offset_min: int) -> None:
        self.await_flush()
        expired = self.builder.expire(commit_log_offset_min)
        if expired:
            # Files go only after the ends that do not need them are on disk.
            self.flush_all()
            for path in expired:
                self.files.remove(path)

    def delete_topic(self, topic: str) -> None:
        self.await_flush()
        directories = self.builder.delete_topic(topic)
        self.flush_all()
        self.builder.remove(directories)

    def close(self) -> None:
        try:
            self.await_flush()
        finally:
            self.builder.close()
            self.addresses.close()

    def follow_ext(self) -> None:
        """Find out whether the ext files were made anew: then the addresses in the queues lead to other units.

        Raises:
            RebuildNeeded: they were.
        """
        try:
            stamp = os.stat(self.ext_generation_path).st_mtime_ns
        except FileNotFoundError:
            return
        if stamp != self.ext_generation_stamp:
            generation = Path(self.ext_generation_path).read_text()
            if self.ext_generation not in (None, generation):
                self.context.logger.warning("the ext files were made anew, and so are the queues that lead to them")
                raise RebuildNeeded
            self.ext_generation, self.ext_generation_stamp = generation, stamp

    def has_batch_queue(self, topic: str) -> bool:
        """Whether RocketMQ 5 keeps the units of *topic* in another kind of queue."""
        topics = TopicConfigManager(self.context.store_directory)
        try:
            topics.load()
        except DamagedStore as error:
            self.context.logger.error("whether a topic has batch queues is not known: topic=%s error=%s", topic, error)
            return False
        config = topics.entries.get(topic)
        return config is not None and config.has_batch_consume_queue

    def reject(self, commit_log_offset: int, reason: str) -> None:
        """Put a record that can have no unit with the dead letters."""
        assert self.batch is not None
        for request in self.batch:
            if request.commit_log_offset == commit_log_offset:
                self.context.reject(request, reason)
                return


@hookimpl
def reput_create_dispatcher(context: DispatcherContext) -> CommitLogDispatcher:
    return ConsumeQueueDispatcher(context)


@hookimpl
def reput_describe_dispatcher() -> DispatcherDescription:
    return DispatcherDescription(
        reads="appended",
        after=("consume_queue_ext",),
        after_failed="proceed",
        store_folders=(FOLDER,),
        rebuilt_with=("consume_queue_ext",),
    )
