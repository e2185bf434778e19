"""FollowingMessageStore: the writer of a store that copies a master's log and takes no messages of its own.

Its log is forced after every run that came, whatever ``flush_disk_type`` says: an acknowledgement is a promise. No
reader sees records before that.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from reput.errors import StoreReadOnly
from reput.settings import Settings
from reput.store.disk.files import Clock, Files
from reput.store.log.log_scan import PlainRows
from reput.store.message_store import MessageStore
from reput.store.service.threads import Threads
from reput.store.state.followed_master import FollowedMaster, read_followed_master
from reput.store.writer.appender import Appender
from reput.store.writer.copied_run import CopiedRun
from reput.store.writer.following_appender import FollowingAppender
from reput.store.writer.publisher import Publisher

__all__ = ["FollowingMessageStore"]


class FollowingMessageStore(MessageStore):
    """The writer of a copy.

    Attributes:
        notice_of_master: what an operator should know of the master now; `reput status` shows it.
    """

    def __init__(
        self,
        directory: Path,
        settings: Settings,
        master: FollowedMaster,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
        threads: Threads | None = None,
        lock_timeout: float | None = 0.0,
    ) -> None:
        """Open the copy of *master*'s log. Errors as of `MessageStore`."""
        self.master = master
        self.notice_of_master: Callable[[], str | None] = lambda: None
        settings = msgspec.structs.replace(settings, flush_disk_type="SYNC_FLUSH", transient_store_pool_enable=False)
        super().__init__(directory, settings, files=files, clock=clock, threads=threads, lock_timeout=lock_timeout)

    def refuse_follower(self) -> None:
        """Refuse a store that no longer follows: it was promoted since its master was read.

        Raises:
            StoreReadOnly: it no longer follows.
        """
        if read_followed_master(self.directory) is None:
            raise StoreReadOnly(
                f"the store follows no master any more: store={self.directory}",
                "It was promoted. Open it as any other store.",
            )

    def move_master(self, ha_address: str, address: str) -> None:
        """Record where the master is now: `FollowedMaster` has the arguments.

        Raises:
            OSError: the disk refuses.
        """
        moved = msgspec.structs.replace(self.master, ha_address=ha_address, address=address)
        if moved != self.master:
            moved.write(self.directory, self.files)
            self.master = moved
            self.copier.ha_address = ha_address

    def make_appender(self) -> Appender:
        """Return what appends the master's records."""
        self.copier = FollowingAppender(self.store_files, self.preparer, self.master.ha_address)
        return self.copier

    @property
    def notice(self) -> str | None:
        """What an operator should know of the master, or of the store."""
        return super().notice or self.notice_of_master()

    def attach(self, publisher: Publisher, *, needs_properties: bool, reads_durable: bool = False) -> None:
        """As of `MessageStore`."""
        super().attach(publisher, needs_properties=needs_properties, reads_durable=reads_durable)
        self.copier.scan.needs_properties = needs_properties

    def append_copied(self, run: CopiedRun) -> int:
        """As `FollowingAppender.append_copied`."""
        return self.copier.append_copied(run)

    def force_at_once(self, on_forced: Callable[[], None]) -> None:
        """Force what was appended, and show it to readers, in the calling thread; *on_forced* is called in between.

        Raises:
            StoreReadOnly: the disk refused.
        """
        self.durability.flush_service.flush(on_forced)
        if self.commit_log.failed is not None:
            raise self.appender.refusal()

    def plain_rows(self, data: bytes | memoryview, commit_log_offset: int) -> PlainRows | None:
        """As `LogScan.rows_of_plain`, with every CRC compared."""
        return self.copier.scan.rows_of_plain(data, commit_log_offset)
