"""FollowingEngine: a store that copies a master's log, with its views and consumers.

Delayed messages and transactions stay the master's: here nothing is put, so nothing is delivered a second time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from reput.embedded.store_engine import StoreEngine
from reput.embedded.views import Mode
from reput.process.control.configuration import Configuration
from reput.replication.compression import ZSTD, decompressor
from reput.replication.copy_preparation import MasterAddress
from reput.replication.follower import Follower
from reput.replication.master_configuration import MasterConfiguration
from reput.settings import Settings
from reput.store.disk.shortages import do_all
from reput.store.following_store import FollowingMessageStore
from reput.store.message_store import MessageStore
from reput.store.state.followed_master import FollowedMaster, follows_refusal

if TYPE_CHECKING:
    from reput.consume.delivery.transactional_message_service import TransactionalMessageService

__all__ = ["FollowingEngine"]


class FollowingEngine(StoreEngine):
    """The engine of one copy. Any number of threads may use it."""

    delivers = False

    def __init__(
        self,
        directory: Path,
        settings: Settings,
        master: FollowedMaster,
        mode: Mode = "processes",
        configuration: Configuration | None = None,
        lock_timeout: float | None = 0.0,
        *,
        address: MasterAddress,
    ) -> None:
        """Open the store, which `prepare_copy` has prepared, and begin to follow; *address*: as of `Follower`.

        Raises:
            ConfigError: the library for the compression is missing.
        """
        self.master = master
        if settings.ha_compression == ZSTD:
            # Each connection needs it: here the error is told before anything is opened.
            decompressor()
        super().__init__(directory, settings, mode, configuration, lock_timeout=lock_timeout)
        assert isinstance(self.writer, FollowingMessageStore)
        self.follower = Follower(self.writer, self.bring_configuration, address)
        self.master_configuration = MasterConfiguration(self, self.follower)
        self.master_configuration.start()
        self.follower.start()

    def open_writer(
        self,
        directory: Path,
        settings: Settings,
        hooks: Sequence[object],
        change_settings: Collection[str],
        lock_timeout: float | None,
    ) -> MessageStore:
        """Return the writer of the copy."""
        del hooks, change_settings
        return FollowingMessageStore(directory, settings, self.master, lock_timeout=lock_timeout)

    def bring_configuration(self) -> None:
        """Bring along the configuration at once."""
        self.master_configuration.wakeup()

    @property
    def transactional_messages(self) -> TransactionalMessageService:
        """Refuse it: transactions are the master's.

        Raises:
            StoreReadOnly: always.
        """
        self.require_open()
        raise follows_refusal(self.directory, self.follower.master.ha_address)

    def half_messages(self) -> int | None:
        """Return 0: transactions are the master's."""
        return 0

    def close_everything(self, drain_time: float) -> None:
        """End the following, then the store."""
        do_all(
            self.follower.stop,
            self.master_configuration.stop,
            lambda: super(FollowingEngine, self).close_everything(drain_time),
        )
