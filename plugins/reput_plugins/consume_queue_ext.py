"""The dispatcher `consume_queue_ext`: which filters let a message pass, ``consumequeue_ext/{topic}/{queueId}/``.

The filters are those of ``config/consumerFilter.json``. The bits of a filter registered there are reliable only from
the time that ``reput/views/consume_queue_ext/filters`` names for that version of the file: `FiltersInUse`.

The view's own folder holds ``cursor``, ``addresses/`` (which unit belongs to which record), ``generation`` (changed
whenever the view is built from nothing, so that the consume queue notices) and ``filters``.
"""

from __future__ import annotations

import os

from reput.filter import BloomFilter
from reput.store.builder_dispatcher import BuilderDispatcher
from reput.store.disk.files import Files
from reput.store.disk.sealed_file import read_sealed, seal
from reput.store.disk.shortages import retry_on_shortage
from reput.store.ext.consume_queue_ext_builder import ConsumeQueueExtBuilder, ExtCursor, ExtState
from reput.store.ext.filters_in_use import FILTERS_IN_USE, FiltersInUse
from reput.store.ext.registered_filters import RegisteredFilters
from reput.store.queue.batch_topics import BatchTopics
from reput.store.queue.consume_queue_builder import shown_queue_file_size
from reput.store.recovery.recreated_queues import recreation_offsets_for_view
from reput.store.service.threads import Threads
from reput_hooks import (
    CommitLogDispatcher,
    Cursor,
    DispatchBatch,
    DispatcherContext,
    DispatcherDescription,
    DispatchRequest,
    hookimpl,
)

__all__ = ["ConsumeQueueExtDispatcher"]

FOLDER = "consumequeue_ext"
# The generation of ext files adopted from RocketMQ; the adopted consume queues have addresses into them.
ADOPTED = "adopted"


class ConsumeQueueExtDispatcher(BuilderDispatcher[ConsumeQueueExtBuilder, ExtCursor]):
    """Builds the ext units of one store."""

    def __init__(self, context: DispatcherContext, files: Files | None = None, threads: Threads | None = None) -> None:
        files = files or Files()
        settings = context.settings
        folder = context.folder(FOLDER)
        builder = ConsumeQueueExtBuilder(
            folder,
            context.directory / "addresses",
            shown_queue_file_size(folder) or settings["mapped_file_size_consume_queue_ext"],
            files=files,
            # Unreadable entries are reported by the consume-queue dispatcher, not here.
            has_batch_queue=BatchTopics(context.store_directory).has,
            recreated_at=recreation_offsets_for_view(folder, context.store_directory),
        )
        super().__init__(context, builder, ExtCursor, files, threads)
        bloom_filter = BloomFilter(
            settings["max_error_rate_of_bloom_filter"], settings["expect_consumer_num_use_filter"]
        )
        self.filters = RegisteredFilters(context.store_directory, bloom_filter, settings["filter_data_clean_time_span"])
        self.calculates = settings["enable_calc_filter_bit_map"]

    def restore(self, kept: ExtCursor) -> None:
        self.builder.restore(kept.state)

    def adopt(self) -> ExtCursor | None:
        # Imported here because it loads numpy, which takes 20 MiB and longer than the rest of a start.
        from reput.store.recovery.consume_queue_ext_adoption import adopt_ext

        state, complete_to = adopt_ext(self.builder, self.context.store_directory)
        if not complete_to:
            return None
        self.builder.restore(state)
        self.begin_generation(ADOPTED)
        # Epoch 1 is the one in which reput found the store, so a truncation since then is applied here, too.
        return ExtCursor(Cursor(self.context.store_id, 1, complete_to, 0), state)

    def begin_empty(self) -> None:
        self.builder.restore(ExtState({}, {}))
        self.begin_generation(os.urandom(16).hex())

    def state_to_keep(self, cursor: Cursor) -> ExtCursor:
        return ExtCursor(cursor, self.builder.state_to_force())

    def state_below(self, cursor: Cursor) -> ExtCursor:
        return ExtCursor(cursor, self.builder.state_below(cursor.commit_log_offset))

    def begin_generation(self, generation: str) -> None:
        """Write a new generation, which tells the consume-queue dispatcher that older addresses are invalid."""
        with retry_on_shortage("the generation cannot be written"):
            self.files.replace(self.context.directory / "generation", generation.encode())

    def dispatch(self, batch: DispatchBatch) -> None:
        if self.calculates and self.filters.reload():
            self.tell_filters()
        with retry_on_shortage("units cannot be written"):
            self.builder.put(batch, self.filters.bit_map if self.calculates else no_bit_map)
        self.end = batch.end

    def tell_filters(self) -> None:
        """Record the store time from which the bits of the current filters are reliable."""
        path = self.context.directory / FILTERS_IN_USE
        told = read_sealed(path, FiltersInUse)
        if told is None or told.digest != self.filters.digest:
            in_use = FiltersInUse(self.filters.digest, self.end.store_timestamp if self.end else 0)
            self.files.replace(path, seal(in_use))

    def delete_topic(self, topic: str) -> None:
        self.await_flush()
        directories = self.builder.delete_topic(topic)
        self.flush_all()
        self.builder.remove(directories)


def no_bit_map(request: DispatchRequest) -> bytes | None:
    """Return None; used when bit maps are disabled."""
    return None


@hookimpl
def reput_create_dispatcher(context: DispatcherContext) -> CommitLogDispatcher:
    return ConsumeQueueExtDispatcher(context)


@hookimpl
def reput_describe_dispatcher() -> DispatcherDescription:
    return DispatcherDescription(
        reads="appended",
        needs_properties=True,
        store_folders=(FOLDER,),
        batch_record_count_max=65_536,
        batch_size_max=1 << 30,
    )
