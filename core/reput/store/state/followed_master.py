"""FollowedMaster: ``reput/followed_master``, the master whose log this store copies.

While the file is there, only `reput follow` appends to the log. `reput promote` removes it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from reput.errors import StoreReadOnly
from reput.store.disk.files import Files
from reput.store.disk.sealed_file import read_sealed, seal

__all__ = [
    "BROUGHT_ALONG",
    "FollowedMaster",
    "follows_refusal",
    "forget_followed_master",
    "read_followed_master",
    "refuse_follower",
]

FOLLOWED_MASTER = "followed_master"
# What the store has from that master besides the log: see `reput.replication.brought_along`.
BROUGHT_ALONG = "brought_along"


class FollowedMaster(msgspec.Struct, frozen=True):
    """The identity of a master, as it was when the copy began.

    Attributes:
        ha_address: where its log is copied from, ``host:port``.
        address: where it answers requests.
        cluster_name, broker_name: of its broker.
        begin: commit-log offset at which the copy began.
    """

    ha_address: str
    address: str
    cluster_name: str
    broker_name: str
    begin: int

    def write(self, store_directory: Path, files: Files) -> None:
        """Record that the store follows this master."""
        files.make_directory(store_directory / "reput")
        files.replace(store_directory / "reput" / FOLLOWED_MASTER, seal(self))


def read_followed_master(store_directory: Path) -> FollowedMaster | None:
    """Return the master that a store follows, None if it follows none."""
    try:
        return read_sealed(store_directory / "reput" / FOLLOWED_MASTER, FollowedMaster)
    except NotADirectoryError:
        # It is no store; opening it reports that.
        return None


def forget_followed_master(store_directory: Path, files: Files) -> None:
    """End the following: the store accepts messages again."""
    own = store_directory / "reput"
    if (own / BROUGHT_ALONG).exists():
        # Of a later master all count as its own, as what came meanwhile is not in the file.
        files.remove(own / BROUGHT_ALONG)
    files.remove(own / FOLLOWED_MASTER)
    files.force_directory(own)


def refuse_follower(store_directory: Path) -> None:
    """Refuse to open a store for messages of its own that follows a master.

    Raises:
        StoreReadOnly: it does.
    """
    master = read_followed_master(store_directory)
    if master is not None:
        raise follows_refusal(store_directory, master.ha_address)


def follows_refusal(store_directory: Path, ha_address: str) -> StoreReadOnly:
    """Return why a message cannot be put into a store that follows a master."""
    return StoreReadOnly(
        f"the store follows a master and takes no messages of its own: master={ha_address} store={store_directory}",
        "Send to the master; or end `reput follow`, and make this store a master with `reput promote STORE`.",
    )
