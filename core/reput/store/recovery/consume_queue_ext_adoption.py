"""How far the ext files reach in a store that RocketMQ closed cleanly, and which unit belongs to which record.

The latter is copied from the consume queues, whose third field is the address.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reput.errors import DamagedStore
from reput.store.disk.file_name import file_name
from reput.store.ext.consume_queue_ext_builder import ConsumeQueueExtBuilder, ExtState
from reput.store.ext.consume_queue_ext_files import ConsumeQueueExtFiles, ExtEnd
from reput.store.queue.consume_queue import PRE_BLANK_SIZE, UNIT, UNIT_SIZE, Unit
from reput.store.queue.consume_queue_builder import queue_directories, shown_queue_file_size
from reput.store.queue.consume_queue_files import QueueEnd, queue_file_begins
from reput.store.recovery.consume_queue_adoption import adopt_queues

__all__ = ["adopt_ext"]


def adopt_ext(builder: ConsumeQueueExtBuilder, store_directory: Path) -> tuple[ExtState, int]:
    """Return what the ext files below *builder* hold, and up to where no record lacks its unit; 0: unknown.

    The sidecar is written; nothing else is changed.
    """
    nothing = ExtState({}, {}), 0
    root = store_directory / "consumequeue"
    file_size = shown_queue_file_size(root)
    if file_size is None or shown_queue_file_size(builder.directory) is None:
        return nothing
    try:
        table, complete_to = adopt_queues(root, store_directory, file_size)
        addresses = builder.addresses
        addresses.restore({})
        for topic, queues in table.items():
            for queue_id, known in queues.items():
                queue = addresses.make_queue((topic, queue_id))
                for queue_offset, unit in units_of(root / topic / str(queue_id), file_size, known):
                    queue.put(*unit, queue_offset)
                addresses.write(queue)
        addresses.force()
        for topic, queue_id, directory in queue_directories(builder.directory):
            begin = min(queue_file_begins(directory), default=0)
            known_ext = ExtEnd(begin, begin)
            builder.ext[topic, queue_id] = ConsumeQueueExtFiles(directory, builder.file_size, builder.files, known_ext)
        return builder.state_below(complete_to), complete_to
    except DamagedStore:
        return nothing


def units_of(directory: Path, file_size: int, known: QueueEnd) -> Iterator[tuple[int, Unit]]:
    """Yield (queue offset, unit) of the records of one queue."""
    for begin in range(known.begin, known.end, file_size):
        data = (directory / file_name(begin)).read_bytes()[: known.end - begin]
        for number, unit in enumerate(UNIT.iter_unpack(data), begin // UNIT_SIZE):
            if unit[1] != PRE_BLANK_SIZE:
                yield number, unit
