"""LeaseRow: what a node of a lease is now, as `reput status`, metrics and console show it."""

from __future__ import annotations

import msgspec

__all__ = ["LeaseRow"]


class LeaseRow(msgspec.Struct, frozen=True):
    """One node of a lease.

    Attributes:
        name: name of the lease.
        member: which of the nodes this is.
        role: ``master`` or ``follower``.
        epoch: of the agreed master's history.
        holder: the member that holds the lease; None: none does.
        master: where clients reach the agreed master, ``host:port``.
        in_sync: the members that have every acknowledged message.
        seconds_left: until the lease ends unless it is renewed; None: this node does not hold it.
    """

    name: str
    member: str
    role: str
    epoch: int
    holder: str | None
    master: str
    in_sync: tuple[str, ...]
    seconds_left: float | None
