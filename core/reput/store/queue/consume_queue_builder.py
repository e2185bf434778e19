"""ConsumeQueueBuilder: all queues of a store, brought up to the commit log batch by batch.

    batch ──▶ rows of one queue ──▶ units ──▶ one write per queue and batch
                                      │
    flush:  files forced ──▶ directories forced ──▶ the caller's cursor with `table`, how far each queue reaches

One writer. The kernel, where it is installed, finds the units of a batch. Without it, a small batch is put row by row,
a larger one at once with numpy, which is then loaded. All put the same units. After a failure a batch may be put again:
units that are there already are skipped.

Source: RocketMQ store, CommitLogDispatcherBuildConsumeQueue, ConsumeQueueStore and MultiDispatchUtils.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import msgspec

from reput.errors import DamagedStore
from reput.kernel import kernel
from reput.store.disk.file_name import file_name, parse_file_name
from reput.store.disk.file_runs import removal_order
from reput.store.disk.files import Files, Progress, untold
from reput.store.queue.consume_queue import UNIT_SIZE
from reput.store.queue.consume_queue_files import ConsumeQueueFiles, QueueEnd
from reput.store.queue.queue_units import QueueUnits
from reput.store.record.layout import INNER_BATCH_FLAG, TRANSACTION_PREPARED_TYPE
from reput.store.record.multi_dispatch import further_queues
from reput_hooks import Cursor, DispatchBatch
from reput_hooks.dispatch import ROW

__all__ = [
    "LEFT_OUT",
    "NONE_RECREATED",
    "AddressFinder",
    "ConsumeQueueBuilder",
    "ConsumeQueueState",
    "QueueTable",
    "names_in",
    "queue_directories",
    "shown_queue_file_size",
]

# Below this, the fixed cost of numpy's calls is more than the rows cost one by one.
BULK_ROWS_MIN = 24
# The same for the one call of the kernel.
KERNEL_ROWS_MIN = 3
# Prepared and rolled back records share this bit, and have no unit.
LEFT_OUT = TRANSACTION_PREPARED_TYPE | INNER_BATCH_FLAG
NAME_SIZE_MAX = 255
SIZES_SEEN = 16
LOGIC_OFFSET_MAX = 2**63 - UNIT_SIZE
# Queue offsets that may be missing before a record. A larger gap means a wrong number, not lost records.
LOST_UNITS_MAX = 5_000_000

QueueTable = dict[str, dict[int, QueueEnd]]
NONE_RECREATED: Mapping[tuple[str, int], int] = MappingProxyType({})


class ConsumeQueueState(msgspec.Struct, frozen=True):
    """The sealed file ``cursor``, which the view keeps beside its files.

    It holds the cursor, how far each queue reaches there, and the generation of ext files that the addresses refer to.
    """

    cursor: Cursor
    queues: QueueTable
    ext_generation: str | None = None


class AddressFinder(Protocol):
    """Finds the ext units that another view holds."""

    def exist(self) -> bool:
        """Return whether there can be any ext units."""

    def find(self, name: tuple[str, int], queue_offset: int, record: tuple[int, int, int, int]) -> int | None:
        """Return the address of the ext unit of a record in the queue (topic, queue id), None if it has none.

        *record*: its commit-log offset, size, tags code and store time.
        """


class ConsumeQueueBuilder:
    """Writes the queues below *directory*.

    Attributes:
        table: topic → queue id → how far the queue reached at the last `force`.
        left_alone_count: records that were passed over because RocketMQ 5 keeps their topic in another kind of queue.
    """

    def __init__(
        self,
        directory: Path,
        file_size: int,
        *,
        files: Files | None = None,
        has_batch_queue: Callable[[str], bool] = lambda topic: False,
        refuse: Callable[[int, str], None] = lambda commit_log_offset, reason: None,
        addresses: AddressFinder | None = None,
        recreated_at: Mapping[tuple[str, int], int] = NONE_RECREATED,
    ) -> None:
        """
        Args:
            file_size: bytes of a queue file, a multiple of 20.
            has_batch_queue: whether RocketMQ 5 keeps a topic under ``batchconsumequeue/``.
            refuse: called with the commit-log offset of each record that can have no unit, and the reason.
            addresses: finds the ext unit of a record. The record's unit gets its address in place of the tags code.
            recreated_at: (topic, queue id) → commit-log offset below which no record has a unit; of `recreated_queues`.

        Raises:
            ConfigError: REPUT_KERNEL asks for a kernel that cannot be used.
        """
        assert file_size % UNIT_SIZE == 0
        self.directory = directory
        self.file_size = file_size
        self.files = files or Files()
        self.has_batch_queue = has_batch_queue
        self.refuse = refuse
        self.addresses = addresses
        self.recreated_at = recreated_at
        self.queues: dict[tuple[str, int], ConsumeQueueFiles] = {}
        self.names: dict[ConsumeQueueFiles, tuple[str, int]] = {}
        # Topic → whether it has queues of another kind, as of the first queue met.
        self.batch_topics: dict[str, bool] = {}
        self.left_alone_count = 0
        self.table: QueueTable = {}
        self.dirty: dict[ConsumeQueueFiles, None] = {}
        self.changed_directories: set[Path] = set()
        # The force in the background: how far its queues reached when it began, and the begins of their files.
        self.ends_to_force: dict[ConsumeQueueFiles, QueueEnd | None] = {}
        self.files_to_force: dict[ConsumeQueueFiles, set[int]] = {}
        self.directories_to_force: set[Path] = set()
        # Queues whose file is open, in the order of opening.
        self.opened: dict[ConsumeQueueFiles, None] = {}
        self.open_max = open_files_max()
        self.kernel = kernel()

    # Taking in.

    def put(self, batch: DispatchBatch) -> None:
        """Bring the queues up to the end of *batch*.

        Raises:
            OSError: the units of some queues were not written; the same batch may be put again.
        """
        touched: dict[ConsumeQueueFiles, None] = {}
        addresses = self.addresses if self.addresses is not None and self.addresses.exist() else None
        if addresses is not None:
            self.take_rows(batch, touched, addresses)
        elif (
            self.kernel is not None
            and len(batch) >= KERNEL_ROWS_MIN
            and (found := self.kernel.queue_units(batch.parts)) is not None
        ):
            units, left_alone_count = found
            self.left_alone_count += left_alone_count
            for name, *fields in units:
                self.take_units(name, QueueUnits(*fields), touched)
        elif len(batch) < BULK_ROWS_MIN:
            self.take_rows(batch, touched)
        else:
            self.take_columns(batch, touched)
        self.write_all(touched)

    def take_rows(
        self, batch: DispatchBatch, touched: dict[ConsumeQueueFiles, None], addresses: AddressFinder | None = None
    ) -> None:
        """Take in a batch row by row."""
        for part in batch.parts:
            names = part.queues
            at = 0
            for (
                commit_log_offset,
                queue_offset,
                tags_code,
                store_timestamp,
                _,
                record_size,
                queue_index,
                sys_flag,
                texts_size,
                uniq_key_size,
                keys_size,
                multi_dispatch_size,
                _,
            ) in ROW.iter_unpack(part.rows):
                name = names[queue_index]
                if sys_flag & LEFT_OUT:
                    self.left_alone_count += bool(sys_flag & INNER_BATCH_FLAG)
                else:
                    address = tags_code
                    if addresses is not None and self.refusal(name[0]) is None:
                        record = (commit_log_offset, record_size, tags_code, store_timestamp)
                        address = addresses.find(name, queue_offset, record) or tags_code
                    self.take(name, commit_log_offset, record_size, address, queue_offset, touched)
                    if multi_dispatch_size >= 0:
                        text_at = at + max(uniq_key_size, 0) + max(keys_size, 0)
                        text = part.texts[text_at : text_at + multi_dispatch_size]
                        for further, further_offset in further_queues(name, text):
                            self.take(further, commit_log_offset, record_size, tags_code, further_offset, touched)
                at += texts_size

    def take_columns(self, batch: DispatchBatch, touched: dict[ConsumeQueueFiles, None]) -> None:
        """Take in a batch as a whole."""
        from reput.store.queue.consume_queue_units import units_by_queue

        rows, names, _ = batch.columns()
        if (rows["multi_dispatch_size"] >= 0).any():
            # A further queue may be the first queue of another record: the order of the log decides.
            self.take_rows(batch, touched)
            return
        left_out = rows["sys_flag"] & LEFT_OUT
        if left_out.any():
            self.left_alone_count += int(((left_out & INNER_BATCH_FLAG) != 0).sum())
            rows = rows[left_out == 0]
        for queue_index, units in units_by_queue(rows):
            self.take_units(names[queue_index], units, touched)

    def take_units(self, name: tuple[str, int], units: QueueUnits, touched: dict[ConsumeQueueFiles, None]) -> None:
        """Take in the units of one queue (topic, queue id), as a run if they follow those that it has."""
        if self.recreated_at and units.commit_log_offset < self.recreated_at.get(name, 0):
            for row in units.rows():
                self.take(name, *row, touched)
            return
        queue = self.queues.get(name)
        if queue is None:
            # Its first unit makes the queue, and says where it begins.
            self.take(name, *next(units.rows()), touched)
            if len(units) == 1:
                return
            queue, units = self.queues.get(name), units.without_first()
        if (
            queue is not None
            and units.consecutive
            and queue.follows(units.commit_log_offset, units.record_size, units.queue_offset)
        ):
            queue.put_run(units.data, units.last, units.max_physic_offset)
            touched[queue] = None
        else:
            for commit_log_offset, record_size, tags_code, queue_offset in units.rows():
                self.take(name, commit_log_offset, record_size, tags_code, queue_offset, touched)

    def take(
        self,
        name: tuple[str, int],
        commit_log_offset: int,
        record_size: int,
        tags_code: int,
        queue_offset: int,
        touched: dict[ConsumeQueueFiles, None],
    ) -> bool:
        """Take in the unit of one record in the queue (topic, queue id); return whether there was one to take in."""
        if self.recreated_at and commit_log_offset < self.recreated_at.get(name, 0):
            return False
        queue = self.queues.get(name)
        if queue is None:
            reason = self.refusal(name[0])
            if reason is not None:
                self.refuse(commit_log_offset, reason)
                return False
            if self.is_left_alone(name[0]):
                self.left_alone_count += 1
                return False
            queue = self.make_queue(name)
        position = queue_offset * UNIT_SIZE
        if queue.end != position and not self.is_plausible(queue, position):
            self.refuse(commit_log_offset, f"impossible queue offset: queue_offset={queue_offset}")
            return False
        if queue.put(commit_log_offset, record_size, tags_code, queue_offset):
            touched[queue] = None
            return True
        return False

    def make_queue(self, name: tuple[str, int]) -> ConsumeQueueFiles:
        """Make the queue (topic, queue id) known, which has no file yet."""
        directory = self.directory / name[0] / str(name[1])
        queue = self.queues[name] = ConsumeQueueFiles(directory, self.file_size, self.files)
        self.names[queue] = name
        return queue

    @staticmethod
    def refusal(topic: str) -> str | None:
        """Return why a topic can have no directory, None if it can."""
        if topic in ("", ".", "..") or "/" in topic or "\0" in topic:
            return f"topic is no name of a directory: topic={topic!r}"
        try:
            name = topic.encode()
        except UnicodeEncodeError:
            return f"topic has a lone surrogate: topic={topic!r}"
        if len(name) > NAME_SIZE_MAX:
            return f"topic is too long for the name of a directory: topic={topic[:40]!r}..."
        return None

    def is_left_alone(self, topic: str) -> bool:
        """Tell whether a topic's units are of another kind; asked once for each topic."""
        known = self.batch_topics.get(topic)
        if known is None:
            known = self.batch_topics[topic] = self.has_batch_queue(topic)
        return known

    def is_plausible(self, queue: ConsumeQueueFiles, position: int) -> bool:
        """Tell whether a unit may come at this logic offset, which is not the next one."""
        if not 0 <= position < LOGIC_OFFSET_MAX:
            return False
        return queue.end is None or position - queue.end <= LOST_UNITS_MAX * UNIT_SIZE

    def write_all(self, touched: dict[ConsumeQueueFiles, None]) -> None:
        """Write what queues have taken in.

        Raises:
            OSError: the units of some queues were not written, and are forgotten.
        """
        try:
            for queue in touched:
                self.write(queue)
        except BaseException:
            for queue in touched:
                queue.forget()
            raise

    def write(self, queue: ConsumeQueueFiles) -> None:
        """Write what one queue has taken in."""
        if queue.file is None:
            self.make_room()
            self.opened[queue] = None
        if queue.write():
            directory = queue.directory
            self.changed_directories |= {directory, directory.parent, self.directory, self.directory.parent}
        self.dirty[queue] = None

    def make_room(self) -> None:
        """Close the queue that has been open longest, when too many are."""
        while len(self.opened) >= self.open_max:
            self.close_queue(next(iter(self.opened)))

    def close_queue(self, queue: ConsumeQueueFiles) -> None:
        """Close the file of one queue; the next use opens it again."""
        self.opened.pop(queue, None)
        queue.close()

    def close(self) -> None:
        """Close all files."""
        for queue in self.queues.values():
            queue.close()
        self.opened.clear()

    # Forcing, and the state kept beside the cursor.

    def begin_force(self) -> Callable[[Progress], None]:
        """Return what forces all that was put so far; any thread may call it, while more is put.

        Its argument is called after each part.

        When it has returned comes `end_force`; after a failure, or when it is not waited for, `abandon_force`.
        """
        self.abandon_force()
        self.ends_to_force = {queue: queue.known() for queue in self.dirty}
        self.files_to_force = {queue: queue.dirty for queue in self.dirty}
        self.directories_to_force = self.changed_directories
        paths = [queue.directory / file_name(at) for queue, begins in self.files_to_force.items() for at in begins]
        for queue in self.dirty:
            queue.dirty = set()
        self.dirty = {}
        self.changed_directories = set()
        return partial(self.files.force_together, paths, list(self.directories_to_force))

    def table_to_force(self) -> QueueTable:
        """Return `table` as `end_force` makes it."""
        table = {topic: dict(queues) for topic, queues in self.table.items()}
        self.set_ends(table, self.ends_to_force)
        return table

    def end_force(self) -> None:
        """Bring `table` up to where the queues were at `begin_force`; all of that is on disk now."""
        self.set_ends(self.table, self.ends_to_force)
        self.ends_to_force = {}
        self.files_to_force = {}
        self.directories_to_force = set()

    def abandon_force(self) -> None:
        """Have the next force be for everything that is not in `table` yet."""
        self.dirty = {**dict.fromkeys(self.ends_to_force), **self.dirty}
        for queue, begins in self.files_to_force.items():
            queue.dirty |= begins
        self.changed_directories |= self.directories_to_force
        self.ends_to_force = {}
        self.files_to_force = {}
        self.directories_to_force = set()

    def force(self) -> None:
        """Force everything to disk that was put, and bring `table` up to it.

        Raises:
            OSError: nothing that was put since the last time is sure to be on disk.
        """
        force = self.begin_force()
        try:
            force(untold)
        except BaseException:
            self.abandon_force()
            raise
        self.end_force()

    def set_ends(self, table: QueueTable, ends: dict[ConsumeQueueFiles, QueueEnd | None]) -> None:
        """Have *table* say that these queues reach so far."""
        for queue, end in ends.items():
            topic, queue_id = self.names[queue]
            assert end is not None
            table.setdefault(topic, {})[queue_id] = end

    def restore(self, table: QueueTable, on_progress: Progress = untold) -> None:
        """Restore the files to *table*, which the caller keeps durably: units before or behind it are removed.

        *on_progress* is called for each queue.

        Raises:
            DamagedStore: the files do not hold what *table* says, or *table* has a queue that RocketMQ has deleted.
        """
        for (topic, queue_id), begin in self.recreated_at.items():
            known = table.get(topic, {}).get(queue_id)
            if known is not None and known.last < begin:
                raise DamagedStore(
                    f"the consume queue belongs to a topic that RocketMQ deleted: topic={topic!r} queue_id={queue_id} "
                    f"last={known.last} birth={begin}"
                )
        self.close()
        self.abandon_force()
        self.queues.clear()
        self.names.clear()
        self.dirty.clear()
        missing = {(topic, queue_id) for topic, queues in table.items() for queue_id in queues}
        for topic, queue_id, directory in queue_directories(self.directory):
            on_progress()
            known = table.get(topic, {}).get(queue_id)
            if known is None:
                self.remove_queue(directory)
                continue
            missing.discard((topic, queue_id))
            queue = ConsumeQueueFiles(directory, self.file_size, self.files, known)
            queue.restore(known)
            queue.close()
            self.queues[topic, queue_id] = queue
            self.names[queue] = (topic, queue_id)
            if queue.dirty:
                self.dirty[queue] = None
        remove_empty_topics(self.directory, self.files)
        if missing:
            topic, queue_id = min(missing)
            raise DamagedStore(f"consume queue is gone: topic={topic!r} queue_id={queue_id} count={len(missing)}")
        self.table = table

    def table_below(self, commit_log_offset: int) -> QueueTable:
        """Return `table` as it is without the units of records from *commit_log_offset* on. Changes nothing."""
        table: QueueTable = {}
        for (topic, queue_id), queue in self.queues.items():
            was_open = queue in self.opened
            known = queue.end_below(commit_log_offset)
            if known is not None:
                table.setdefault(topic, {})[queue_id] = known
            if not was_open:
                queue.close()
        return table

    def expire(self, commit_log_offset_min: int) -> list[Path]:
        """Leave out the files that hold only records below *commit_log_offset_min* and return them.

        Remove them once the table that `force` makes without them is durable.
        """
        self.abandon_force()
        expired: list[Path] = []
        for queue in self.queues.values():
            if queue.end is None:
                # Its first units found no room.
                continue
            was_open = queue in self.opened
            begin = queue.expired_begin(commit_log_offset_min)
            if begin > queue.begin:
                expired += [queue.directory / file_name(at) for at in range(queue.begin, begin, self.file_size)]
                queue.begin = begin
                self.dirty[queue] = None
            if not was_open:
                queue.close()
        return expired

    def delete_topic(self, topic: str) -> list[Path]:
        """Leave out the queues of *topic* and return their directories, to be removed as those of `expire`."""
        self.abandon_force()
        deleted = [name for name in self.queues if name[0] == topic]
        directories = []
        for name in deleted:
            queue = self.queues.pop(name)
            del self.names[queue]
            self.close_queue(queue)
            self.dirty.pop(queue, None)
            directories.append(queue.directory)
        self.table.pop(topic, None)
        self.batch_topics.pop(topic, None)
        return directories

    def remove(self, directories: list[Path]) -> None:
        """Remove what `delete_topic` returned."""
        for directory in directories:
            self.remove_queue(directory)
        remove_empty_topics(self.directory, self.files)

    def remove_queue(self, directory: Path) -> None:
        """Remove a queue's directory."""
        for path in removal_order(sorted(directory.iterdir()), ()):
            self.files.remove(path)
        self.files.remove_directory(directory)
        self.changed_directories -= {directory, directory.parent}


def remove_empty_topics(directory: Path, files: Files) -> None:
    """Remove the directories of topics below *directory* that have no queue left."""
    if directory.is_dir():
        for topic in sorted(directory.iterdir()):
            if topic.is_dir() and not any(topic.iterdir()):
                files.remove_directory(topic)


def queue_directories(directory: Path) -> Iterator[tuple[str, int, Path]]:
    """Yield (topic, queue id, directory) of each queue below a ``consumequeue`` directory.

    Directories whose name is not a number are skipped, as in RocketMQ.
    """
    if not directory.is_dir():
        return
    for topic in sorted(os.listdir(directory)):
        if (directory / topic).is_dir():
            for queue_id, queue_directory in queues_of_topic(directory / topic):
                yield topic, queue_id, queue_directory


def queues_of_topic(directory: Path) -> Iterator[tuple[int, Path]]:
    """Yield (queue id, directory) of each queue below a topic's directory; none if there is no such directory."""
    for name in sorted(names_in(directory)):
        if name.isascii() and name.removeprefix("-").isdigit() and (directory / name).is_dir():
            yield int(name), directory / name


def names_in(directory: Path) -> list[str]:
    """Return the names in *directory*; none if it is gone, as the deletion of a topic may take it at any moment."""
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def shown_queue_file_size(directory: Path) -> int | None:
    """Return the size of the files below a ``consumequeue`` directory, None if there is none.

    The most frequent size of a sample decides, so that a file that was cut short does not mislead.
    """
    sizes: list[int] = []
    for _, _, queue_directory in queue_directories(directory):
        for name in names_in(queue_directory):
            # Retention, or the deletion of a topic, may remove a file meanwhile.
            with contextlib.suppress(FileNotFoundError):
                if parse_file_name(name) is not None and (size := os.stat(queue_directory / name).st_size):
                    sizes.append(size)
        if len(sizes) >= SIZES_SEEN:
            break
    return max(sizes, key=lambda size: (sizes.count(size), size)) if sizes else None


def open_files_max() -> int:
    """Return how many queues may have their file open: half of what the system allows this process."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, min(allowed, 16384) // 2)
