"""promote: makes the copy of a master a master, with an epoch of its own.

    take the lock, recover ── the copy ends at its last whole record
    begin an epoch there   ── written before the store takes a message
    forget the master      ── from now on the store opens for messages

A kill before the last step leaves a copy; promoted again, it has one more epoch.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from reput.errors import ConfigError
from reput.store.disk.shortages import tell_store_error
from reput.store.following_store import FollowingMessageStore
from reput.store.state.followed_master import forget_followed_master, read_followed_master
from reput.store.state.identity import require_store
from reput.store.state.lease_mark import refuse_node
from reput.store.state.recorded_settings import load_store_settings
from reput.store.state.store_lock import StoreLock

__all__ = ["Promotion", "promote"]

logger = logging.getLogger(__name__)


class Promotion(msgspec.Struct, frozen=True):
    """What a promotion has done.

    Attributes:
        epoch: of the history that begins at *commit_log_offset*.
        master, begin: what the store had followed, and from where on.
        cluster_name, broker_name: of that master. Its clients and its other copies look for a broker of these names.
    """

    store: str
    epoch: int
    commit_log_offset: int
    master: str
    begin: int
    cluster_name: str
    broker_name: str


def promote(directory: Path) -> Promotion:
    """Make the copy in *directory* a master.

    Raises:
        NotAStore: there is no store.
        ConfigError: it follows no master, or a lease decides which master it follows.
        StoreLocked: `reput follow` is still running.
        StoreError: the disk refuses.
    """
    require_store(directory)
    refuse_node(directory, "Start it with `reput serve --lease`: it becomes the master when it may.")
    master = read_followed_master(directory)
    if master is None:
        raise ConfigError(
            f"the store follows no master: store={directory}", "It takes messages already; there is nothing to do."
        )
    with tell_store_error(f"the store cannot be promoted: store={directory}"):
        writer = FollowingMessageStore(directory, load_store_settings(directory).settings, master)
        end = writer.appended
        try:
            epoch = writer.begin_epoch()
        finally:
            writer.give_back()
        lock = StoreLock(directory)
        try:
            forget_followed_master(directory, writer.files)
        finally:
            lock.close()
    logger.info("a copy has become a master: store=%s epoch=%d commit_log_offset=%d", directory, epoch, end)
    names = master.cluster_name, master.broker_name
    return Promotion(str(directory), epoch, end, master.ha_address, master.begin, *names)
