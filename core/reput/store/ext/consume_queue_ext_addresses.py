"""ExtAddresses: which ext unit belongs to a record, as the builder of the consume queue finds it.

It reads what the dispatcher `consume_queue_ext` keeps beside its units. An address is believed only if the sidecar's
entry is of this very record, by commit-log offset and size, and the unit there has its tags code and store time.
"""

from __future__ import annotations

import os
from pathlib import Path

from reput.store.disk.open_files import OpenFiles
from reput.store.ext.consume_queue_ext import ConsumeQueueExt, is_address
from reput.store.ext.consume_queue_ext_builder import ADDRESS_FILE_SIZE
from reput.store.queue.consume_queue import ConsumeQueue, Unit

__all__ = ["ExtAddresses"]

READ_COUNT = 64


class ExtAddresses:
    """Finds addresses. One reader, in another process than the builder of the ext files."""

    def __init__(self, address_directory: Path, ext_directory: Path, ext_file_size: int) -> None:
        self.address_directory = address_directory
        self.ext_directory = ext_directory
        self.ext_file_size = ext_file_size
        self.files = OpenFiles()
        self.queues: dict[tuple[str, int], tuple[ConsumeQueue, ConsumeQueueExt]] = {}
        # Queue → (queue offset of the first, entries) that were read last.
        self.read: dict[tuple[str, int], tuple[int, list[Unit]]] = {}

    def exist(self) -> bool:
        """Return whether the view is there."""
        # Asked at every batch, where a call of pathlib's would be a tenth of the work.
        return os.path.isdir(self.address_directory)

    def find(self, name: tuple[str, int], queue_offset: int, record: tuple[int, int, int, int]) -> int | None:
        """Return the address of the ext unit of a record, None if it has none; see `AddressFinder`."""
        address = self.look_up(name, queue_offset, record)
        if address is None:
            # The files were opened before the view was made anew, brought back to its cursor, or rid of a topic.
            addresses, ext = self.queue(name)
            self.read.pop(name, None)
            self.files.forget(addresses.prefix)
            self.files.forget(f"{ext.directory}/")
            address = self.look_up(name, queue_offset, record)
        return address if address is not None and is_address(address) else None

    def look_up(self, name: tuple[str, int], queue_offset: int, record: tuple[int, int, int, int]) -> int | None:
        """Return the third field of the sidecar's entry of a record, None if there is none that can be believed."""
        commit_log_offset, record_size, tags_code, store_timestamp = record
        addresses, ext = self.queue(name)
        first, units = self.read.get(name, (0, []))
        number = queue_offset - first
        if not 0 <= number < len(units) or units[number][:2] != (commit_log_offset, record_size):
            units = addresses.units(queue_offset, READ_COUNT)
            self.read[name] = (queue_offset, units)
            number = 0
            if not units or units[0][:2] != (commit_log_offset, record_size):
                return None
        address = units[number][2]
        if is_address(address):
            unit = ext.get(address)
            if unit is None or (unit.tags_code, unit.store_timestamp) != (tags_code, store_timestamp):
                return None
        return address

    def queue(self, name: tuple[str, int]) -> tuple[ConsumeQueue, ConsumeQueueExt]:
        """Return the sidecar and the ext files of one queue."""
        found = self.queues.get(name)
        if found is None:
            topic, queue_id = name[0], str(name[1])
            found = self.queues[name] = (
                ConsumeQueue(self.address_directory / topic / queue_id, ADDRESS_FILE_SIZE, self.files),
                ConsumeQueueExt(self.ext_directory / topic / queue_id, self.ext_file_size, self.files),
            )
        return found

    def close(self) -> None:
        """Close the files."""
        self.files.close()
