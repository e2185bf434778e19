"""ConsumeQueueExtBuilder: the ext units of all queues, and the sidecar that says which unit belongs to which record.

    consumequeue_ext/{topic}/{queue id}/    units, as in RocketMQ; they do not name their record
    addresses/{topic}/{queue id}/           the sidecar: a consume queue whose third field is the unit's address

The sidecar follows a consume queue's rules for existing units, cuts and expiry, and so keeps both in step. The
dispatcher of the consume queue takes the addresses from there.

Source: RocketMQ store, ConsumeQueue.putMessagePositionInfoWrapper and ConsumeQueueExt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from reput.errors import DamagedStore
from reput.store.disk.file_name import file_name
from reput.store.disk.files import Files, Progress, untold
from reput.store.disk.open_files import OpenFiles
from reput.store.ext.consume_queue_ext import ConsumeQueueExt, ExtUnit, is_address, offset_of
from reput.store.ext.consume_queue_ext_files import ConsumeQueueExtFiles, ExtEnd
from reput.store.queue.consume_queue import PRE_BLANK_SIZE, UNIT_SIZE
from reput.store.queue.consume_queue_builder import (
    LEFT_OUT,
    NONE_RECREATED,
    ConsumeQueueBuilder,
    QueueTable,
    queue_directories,
    remove_empty_topics,
)
from reput.store.queue.consume_queue_files import ConsumeQueueFiles
from reput_hooks import Cursor, DispatchRequest

__all__ = ["ADDRESS_FILE_SIZE", "ConsumeQueueExtBuilder", "ExtCursor", "ExtState"]

# Format of the sidecar, which only reput reads.
ADDRESS_FILE_SIZE = 300_000 * UNIT_SIZE


class ExtState(msgspec.Struct, frozen=True):
    """The view's state: the ends of the sidecar's queues, and the ext files, by topic and queue id."""

    addresses: QueueTable
    ends: dict[str, dict[int, ExtEnd]]


class ExtCursor(msgspec.Struct, frozen=True):
    """The cursor, and the state of the view there."""

    cursor: Cursor
    state: ExtState


class ConsumeQueueExtBuilder:
    """Writes the ext files below *directory* and the sidecar in *address_directory*."""

    def __init__(
        self,
        directory: Path,
        address_directory: Path,
        file_size: int,
        *,
        files: Files | None = None,
        has_batch_queue: Callable[[str], bool] = lambda topic: False,
        refuse: Callable[[int, str], None] = lambda commit_log_offset, reason: None,
        recreated_at: Mapping[tuple[str, int], int] = NONE_RECREATED,
    ) -> None:
        """*has_batch_queue*, *refuse*, *recreated_at*: as of `ConsumeQueueBuilder`."""
        self.directory = directory
        self.file_size = file_size
        self.files = files or Files()
        self.addresses = ConsumeQueueBuilder(
            address_directory,
            ADDRESS_FILE_SIZE,
            files=self.files,
            has_batch_queue=has_batch_queue,
            refuse=refuse,
            recreated_at=recreated_at,
        )
        self.ext: dict[tuple[str, int], ConsumeQueueExtFiles] = {}
        self.ends: dict[str, dict[int, ExtEnd]] = {}
        self.dirty: dict[tuple[str, int], None] = {}
        self.changed_directories: set[Path] = set()
        # The force in the background: how far the files reached when it began, and the begins of these files.
        self.ends_to_force: dict[tuple[str, int], ExtEnd] = {}
        self.files_to_force: dict[tuple[str, int], set[int]] = {}
        self.directories_to_force: set[Path] = set()

    def put(self, requests: Iterable[DispatchRequest], bit_map_of: Callable[[DispatchRequest], bytes | None]) -> None:
        """Put a unit for each record that has one in its consume queue.

        Raises:
            OSError: some units were not written; the same records may be put again.
        """
        touched: dict[ConsumeQueueFiles, None] = {}
        try:
            for request in requests:
                if not request.sys_flag & LEFT_OUT:
                    self.take(request, bit_map_of(request), touched)
            for queue in touched:
                self.write(queue)
        finally:
            for queue in touched:
                queue.forget()
                self.ext[self.addresses.names[queue]].forget()

    def take(self, request: DispatchRequest, bit_map: bytes | None, touched: dict[ConsumeQueueFiles, None]) -> None:
        """Take in the unit of one record, unless its queue has it already."""
        name = (request.topic, request.queue_id)
        ext = self.ext.get(name)
        if ext is None:
            directory = self.directory / request.topic / str(request.queue_id)
            ext = ConsumeQueueExtFiles(directory, self.file_size, self.files)
        before = ext.end, len(ext.pending)
        address = ext.put(ExtUnit(request.tags_code, request.store_timestamp, bit_map))
        if self.addresses.take(
            name,
            request.commit_log_offset,
            request.record_size,
            request.tags_code if address is None else address,
            request.queue_offset,
            touched,
        ):
            self.ext[name] = ext
        else:
            ext.end = before[0]
            del ext.pending[before[1] :]

    def write(self, queue: ConsumeQueueFiles) -> None:
        """Write the pending units of one queue, and then their addresses.

        Raises:
            OSError: neither counts; the next write overwrites what is there.
        """
        name = self.addresses.names[queue]
        ext = self.ext[name]
        written_end = ext.written_end
        if ext.write():
            directory = ext.directory
            self.changed_directories |= {directory, directory.parent, self.directory, self.directory.parent}
        try:
            self.addresses.write(queue)
        except BaseException:
            ext.written_end = written_end
            raise
        if ext.written_end:
            self.dirty[name] = None

    def begin_force(self) -> Callable[[Progress], None]:
        """Return what forces all that was put so far; as of `ConsumeQueueBuilder`."""
        self.abandon_force()
        force_addresses = self.addresses.begin_force()
        self.ends_to_force = {name: self.ext[name].known() for name in self.dirty}
        self.files_to_force = {name: self.ext[name].dirty for name in self.dirty}
        self.directories_to_force = self.changed_directories
        paths = [
            self.ext[name].directory / file_name(at) for name, begins in self.files_to_force.items() for at in begins
        ]
        for name in self.dirty:
            self.ext[name].dirty = set()
        self.dirty = {}
        self.changed_directories = set()
        force_units = partial(self.files.force_together, paths, list(self.directories_to_force))

        def force(on_progress: Progress) -> None:
            force_units(on_progress)
            force_addresses(on_progress)

        return force

    def state_to_force(self) -> ExtState:
        """Return `state` as `end_force` makes it."""
        ends = {topic: dict(queues) for topic, queues in self.ends.items()}
        set_ends(ends, self.ends_to_force)
        return ExtState(self.addresses.table_to_force(), ends)

    def end_force(self) -> None:
        """Bring `state` up to where the files were at `begin_force`; all of that is on disk now."""
        self.addresses.end_force()
        set_ends(self.ends, self.ends_to_force)
        self.ends_to_force = {}
        self.files_to_force = {}
        self.directories_to_force = set()

    def abandon_force(self) -> None:
        """Have the next force be for everything that is not in `state` yet."""
        self.addresses.abandon_force()
        self.dirty = {**dict.fromkeys(self.ends_to_force), **self.dirty}
        for name, begins in self.files_to_force.items():
            self.ext[name].dirty |= begins
        self.changed_directories |= self.directories_to_force
        self.ends_to_force = {}
        self.files_to_force = {}
        self.directories_to_force = set()

    def force(self) -> ExtState:
        """Force everything to disk that was put, and return what the view holds.

        Raises:
            OSError: nothing that was put since the last time is sure to be on disk.
        """
        force = self.begin_force()
        force(untold)
        self.end_force()
        return self.state()

    def state(self) -> ExtState:
        """Return what the view held at the last `force`."""
        return ExtState(self.addresses.table, self.ends)

    def restore(self, state: ExtState) -> None:
        """Bring the files to *state*, which the caller keeps durably: what lies before or behind goes.

        Raises:
            DamagedStore: the files do not hold what *state* says.
        """
        self.abandon_force()
        self.addresses.restore(state.addresses)
        self.ext.clear()
        self.dirty.clear()
        missing = {(topic, queue_id) for topic, queues in state.ends.items() for queue_id in queues}
        for topic, queue_id, directory in queue_directories(self.directory):
            known = state.ends.get(topic, {}).get(queue_id)
            if known is None:
                self.addresses.remove_queue(directory)
                continue
            missing.discard((topic, queue_id))
            ext = self.ext[topic, queue_id] = ConsumeQueueExtFiles(directory, self.file_size, self.files, known)
            ext.restore(known)
            if ext.dirty:
                self.dirty[topic, queue_id] = None
        remove_empty_topics(self.directory, self.files)
        if missing:
            topic, queue_id = min(missing)
            raise DamagedStore(f"consume queue ext is gone: topic={topic!r} queue_id={queue_id} count={len(missing)}")
        self.ends = state.ends
        self.check_last_units()

    def check_last_units(self) -> None:
        """Make sure that the last address of each queue leads to a unit."""
        for (topic, queue_id), end in self.ends_of_addresses(self.addresses.table).items():
            known = self.ends.get(topic, {}).get(queue_id)
            if known is None or known.end < end.end:
                raise DamagedStore(f"consume queue ext ends too early: topic={topic!r} queue_id={queue_id}")

    def state_below(self, commit_log_offset: int) -> ExtState:
        """Return what the view holds without the units of records from *commit_log_offset* on. Changes nothing."""
        table = self.addresses.table_below(commit_log_offset)
        ends: dict[str, dict[int, ExtEnd]] = {}
        for (topic, queue_id), end in self.ends_of_addresses(table).items():
            ends.setdefault(topic, {})[queue_id] = end
        return ExtState(table, ends)

    def ends_of_addresses(self, table: QueueTable) -> dict[tuple[str, int], ExtEnd]:
        """Return how far the ext files reach by the last address of each queue of *table*.

        Raises:
            DamagedStore: an address leads nowhere.
        """
        open_files = OpenFiles()
        ends: dict[tuple[str, int], ExtEnd] = {}
        try:
            for topic, queues in table.items():
                for queue_id, known in queues.items():
                    queue = self.addresses.queues[topic, queue_id]
                    position = known.end - UNIT_SIZE
                    while position >= known.begin and not is_address(queue.unit_at(position)[2]):
                        position -= UNIT_SIZE
                    address = queue.unit_at(position)[2] if position >= known.begin else 0
                    queue.close()
                    if not is_address(address):
                        continue
                    ext = self.ext.get((topic, queue_id))
                    if ext is None:
                        raise DamagedStore(f"consume queue ext is gone: topic={topic!r} queue_id={queue_id}")
                    unit = ConsumeQueueExt(ext.directory, self.file_size, open_files).get(address)
                    if unit is None:
                        raise DamagedStore(
                            f"consume queue ext lacks a unit: topic={topic!r} queue_id={queue_id} address={address}"
                        )
                    ends[topic, queue_id] = ExtEnd(ext.begin, offset_of(address) + unit.size)
        finally:
            open_files.close()
        return ends

    def expire(self, commit_log_offset_min: int) -> list[Path]:
        """Leave out the files that hold only units of records below *commit_log_offset_min* and return them.

        Remove them once the state that `force` makes without them is durable.

        Source: RocketMQ store, ConsumeQueueExt.truncateByMinAddress.
        """
        self.abandon_force()
        expired = self.addresses.expire(commit_log_offset_min)
        for name, ext in self.ext.items():
            queue = self.addresses.queues.get(name)
            if queue is None or queue.end is None:
                continue
            for position in range(queue.begin, queue.end, UNIT_SIZE):
                _, size, address = queue.unit_at(position)
                if size != PRE_BLANK_SIZE and is_address(address):
                    first = offset_of(address)
                    begin = first - first % self.file_size
                    if begin > ext.begin:
                        expired += [ext.directory / file_name(at) for at in range(ext.begin, begin, self.file_size)]
                        ext.begin = begin
                        self.dirty[name] = None
                    break
            queue.close()
        return expired

    def delete_topic(self, topic: str) -> list[Path]:
        """Leave out what belongs to *topic* and return its directories, to be removed as those of `expire`."""
        self.abandon_force()
        directories = self.addresses.delete_topic(topic)
        for name in [name for name in self.ext if name[0] == topic]:
            directories.append(self.ext.pop(name).directory)
            self.dirty.pop(name, None)
        self.ends.pop(topic, None)
        return directories

    def remove(self, directories: list[Path]) -> None:
        """Remove what `delete_topic` returned."""
        for directory in directories:
            if directory.is_dir():
                self.addresses.remove_queue(directory)
        self.changed_directories.difference_update(directories)
        remove_empty_topics(self.directory, self.files)
        remove_empty_topics(self.addresses.directory, self.files)

    def close(self) -> None:
        """Close all files."""
        self.addresses.close()


def set_ends(ends: dict[str, dict[int, ExtEnd]], known: Mapping[tuple[str, int], ExtEnd]) -> None:
    """Have *ends*, by topic and queue id, say that these files reach so far."""
    for (topic, queue_id), end in known.items():
        ends.setdefault(topic, {})[queue_id] = end
