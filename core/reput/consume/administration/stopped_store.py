"""StoppedStore: administration of a store that no program has open."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from reput.consume.administration.administration import Administration
from reput.consume.administration.stored_queues import StoredQueues
from reput.consume.pull.group_reader import ReadingStore
from reput.consume.registry.config_managers import ConfigManagers
from reput.consume.registry.subscription_groups import SubscriptionGroups
from reput.consume.registry.topics import Topics
from reput.store.reader.message_reader import MessageReader
from reput.store.state.store_lock import StoreLock

__all__ = ["StoppedStore"]


class StoppedStore:
    """The configuration of a store. Its lock is held until `close`, so no other program writes it meanwhile.

    Args:
        store: the same store, open for reading; the caller closes it.
    """

    def __init__(self, directory: Path, store: ReadingStore) -> None:
        """Take the lock and read the files.

        Raises:
            StoreLocked: another process writes the store, and keeps its configuration in memory.
            DamagedStore: neither a file nor its backup can be read.
        """
        settings = store.settings
        reader: MessageReader = store.reader
        with ExitStack() as undo:
            self.store_lock = StoreLock(directory)
            undo.callback(self.store_lock.close)
            self.managers = ConfigManagers(directory, settings)
            self.topics = Topics(self.managers.topics, settings, reader.queue_ids)
            self.groups = SubscriptionGroups(self.managers.groups, settings)
            self.administration = Administration(
                StoredQueues(store, self.topics), self.managers, self.topics, self.groups
            )
            undo.pop_all()

    def close(self) -> None:
        """Release the lock."""
        self.store_lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
