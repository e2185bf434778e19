"""The dispatcher `consume_queue`: the queues that consumers read, ``consumequeue/{topic}/{queueId}/``.

One file holds the cursor and the ends of all queues. A start cuts the queues back to those ends and zeroes the rest;
the replay writes each unit at its own place again, so the bytes are the same.
"""

from __future__ import annotations

import os
from pathlib import Path

from reput.errors import DamagedStore, OffsetOutOfRange
from reput.store.builder_dispatcher import BuilderDispatcher
from reput.store.disk.files import Files
from reput.store.disk.shortages import retry_on_shortage
from reput.store.ext.consume_queue_ext_addresses import ExtAddresses
from reput.store.queue.batch_topics import BatchTopics
from reput.store.queue.consume_queue_builder import (
    ConsumeQueueBuilder,
    ConsumeQueueState,
    shown_queue_file_size,
)
from reput.store.recovery.recreated_queues import recreation_offsets_for_view
from reput.store.service.threads import Threads
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
# The generation that `consume_queue_ext` writes when it adopts RocketMQ's ext files.
ADOPTED = "adopted"


class ConsumeQueueDispatcher(BuilderDispatcher[ConsumeQueueBuilder, ConsumeQueueState]):
    """Builds the consume queues of one store."""

    def __init__(self, context: DispatcherContext, files: Files | None = None, threads: Threads | None = None) -> None:
        files = files or Files()
        folder = context.folder(FOLDER)
        builder = ConsumeQueueBuilder(
            folder,
            # The size of existing files wins; the setting applies only to a store without any.
            shown_queue_file_size(folder) or context.settings["mapped_file_size_consume_queue"],
            files=files,
            has_batch_queue=BatchTopics(context.store_directory, context.logger.error).has,
            refuse=self.reject,
            recreated_at=recreation_offsets_for_view(folder, context.store_directory),
        )
        super().__init__(context, builder, ConsumeQueueState, files, threads)
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
        # The commit-log offset of unreadable bytes that prevented the last rebuild of the queues.
        self.unreadable_at: int | None = None

    def restore(self, kept: ConsumeQueueState) -> None:
        self.builder.restore(kept.queues, self.context.alive)
        self.ext_generation = kept.ext_generation

    def adopt(self) -> ConsumeQueueState | None:
        # This import loads numpy, which no other start needs.
        from reput.store.recovery.consume_queue_adoption import adopt_queues

        builder = self.builder
        table, complete_to = adopt_queues(builder.directory, self.context.store_directory, builder.file_size)
        if not complete_to:
            return None
        # The addresses in the queues stay valid if the ext files are adopted as well.
        ext_generation = ADOPTED if self.ext_folder.is_dir() else None
        # Epoch 1 is the one in which reput found the store, so a truncation since then is applied here, too.
        kept = ConsumeQueueState(Cursor(self.context.store_id, 1, complete_to, 0), table, ext_generation)
        self.restore(kept)
        return kept

    def begin_empty(self) -> None:
        self.builder.restore({}, self.context.alive)

    def state_to_keep(self, cursor: Cursor) -> ConsumeQueueState:
        return ConsumeQueueState(cursor, self.builder.table_to_force(), self.ext_generation)

    def state_below(self, cursor: Cursor) -> ConsumeQueueState:
        return ConsumeQueueState(cursor, self.builder.table_below(cursor.commit_log_offset), self.ext_generation)

    def dispatch(self, batch: DispatchBatch) -> None:
        self.batch = batch
        # One check per batch: usually there are no ext files.
        ext_holds = os.access(self.ext_path, os.F_OK) and self.follow_ext()
        self.builder.addresses = self.addresses if ext_holds else None
        with retry_on_shortage("units cannot be written"):
            self.builder.put(batch)
        if self.left_alone.value != self.builder.left_alone_count:
            self.left_alone.value = self.builder.left_alone_count
        self.end = batch.end

    def delete_topic(self, topic: str) -> None:
        self.await_flush()
        directories = self.builder.delete_topic(topic)
        self.flush_all()
        self.builder.remove(directories)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.addresses.close()

    def follow_ext(self) -> bool:
        """Check whether the ext files were rebuilt, which makes the addresses in the queues refer to other units.

        Returns:
            whether units may get addresses. False if the ext files were rebuilt but the log cannot rebuild the queues:
            the queues then stay and continue with plain tags codes, because ext units only speed up filters.

        Raises:
            RebuildNeeded: the ext files were rebuilt, and the log can rebuild the queues.
        """
        try:
            stamp = os.stat(self.ext_generation_path).st_mtime_ns
        except FileNotFoundError:
            return True
        if stamp != self.ext_generation_stamp:
            # A damaged generation counts as a new one.
            generation = Path(self.ext_generation_path).read_text("utf-8", "replace")
            if self.ext_generation not in (None, generation):
                if self.would_lose_messages():
                    return False
                self.context.logger.warning(
                    "the ext files were rebuilt, so the queues that refer to them are rebuilt as well"
                )
                raise RebuildNeeded
            self.ext_generation, self.ext_generation_stamp = generation, stamp
        return True

    def would_lose_messages(self) -> bool:
        """Return whether rebuilt queues would stop at damage in the log that the present queues are already past."""
        known = self.unreadable_at
        end = self.end.commit_log_offset if self.end is not None else 0
        self.unreadable_at = self.first_unreadable(known or 0, end)
        if self.unreadable_at is not None and self.unreadable_at != known:
            self.context.logger.error(
                "the ext files were rebuilt; the queues that refer to them are kept until the damage of the log is "
                "accepted, because beyond it they cannot be rebuilt: commit_log_offset=%d view=%d",
                self.unreadable_at,
                end,
            )
        return self.unreadable_at is not None

    def first_unreadable(self, begin: int, end: int) -> int | None:
        """Return the offset of the first unaccepted damage of the log in [*begin*, *end*), None if there is none."""
        # Imported here because it loads numpy and is needed only when a view was lost.
        from reput.store.log.log_scan import LogScan
        from reput.store.recovery.damage_list import accepted_damage

        store_directory = self.context.store_directory
        scan = LogScan(store_directory, passed_over=accepted_damage(store_directory))
        at = max(begin, scan.offset_min)
        try:
            while at < end:
                self.context.alive()
                try:
                    at = scan.passed_over[at] if at in scan.passed_over else scan.locate(at, end)[1]
                except OffsetOutOfRange:
                    if scan.offset_min <= at:
                        return at
                    # Retention has deleted it in the meantime.
                    at = scan.offset_min
        except DamagedStore:
            return at
        finally:
            scan.close()
        return None

    def reject(self, commit_log_offset: int, reason: str) -> None:
        """Send a record that can have no unit to the dead letters."""
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
        # The dispatcher reads no bodies, and each batch has a cost for every queue that it touches.
        batch_record_count_max=65_536,
        batch_size_max=1 << 30,
    )
