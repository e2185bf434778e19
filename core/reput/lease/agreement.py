"""Agreement: what the nodes of one broker agree on, and what an engine for agreement must do for them.

    state    epoch, master, in-sync set     stays; each change is a compare-and-swap on its revision
    holder   the member that is the master  belongs to a lease of the engine, and vanishes when that ends

This is the configuration manager of PacificA, and the in-sync set is that of Kafka and of RocketMQ's controller mode: a
message is acknowledged once every member of the set has it, only a member of the set may become the master, and only
the holder may change the set. So every member has all that was ever acknowledged.

Source: Lin and others, PacificA: Replication in Log-Based Distributed Storage Systems, 2008.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

__all__ = ["Agreed", "Agreement", "ClusterState", "Grant", "LeaseMembership", "Node"]


class Node(msgspec.Struct, frozen=True):
    """A store that a broker serves.

    Attributes:
        member: which of the nodes it is.
        address, ha_address: where clients and followers connect, ``host:port``.
    """

    member: str
    address: str
    ha_address: str


class ClusterState(msgspec.Struct, frozen=True):
    """What outlives a master.

    Attributes:
        epoch: of the master's history; each master has a higher one than all before.
        in_sync: the members that have every acknowledged message, the master among them; ascending.
    """

    epoch: int
    master: Node
    in_sync: tuple[str, ...]
    cluster_name: str
    broker_name: str


class LeaseMembership(msgspec.Struct, frozen=True):
    """How a node makes itself known to the master that it follows.

    Attributes:
        member: which of the nodes it is.
        epoch: of the master that it looks for.
    """

    member: str
    epoch: int


class Agreed(msgspec.Struct, frozen=True):
    """What the engine says at one moment.

    Attributes:
        state: None: no node was ever the master.
        holder: the member that holds the lease; None: none does.
        revision, holder_revision: of the last change of either; 0: there is none.
    """

    state: ClusterState | None
    revision: int
    holder: str | None
    holder_revision: int


class Grant(msgspec.Struct):
    """The lease of a master.

    Attributes:
        ttl: seconds that the engine keeps it after each renewal.
        holder_revision: at which this master became the holder: the fence of all its changes.
        revision: of the state, as this master wrote it last.
    """

    lease_id: str
    ttl: float
    holder_revision: int
    revision: int


class Agreement(Protocol):
    """An engine for agreement. Every call is linearizable; one that raises BrokerError may have had its effect."""

    name: str

    def read(self) -> Agreed:
        """Return what is agreed on now.

        Raises:
            BrokerError: the engine does not answer.
        """

    def take(self, seen: Agreed, state: ClusterState) -> Grant | None:
        """Become the holder, and set *state*, if nothing has changed since *seen*; None: something has.

        Raises:
            BrokerError: the engine does not answer.
        """

    def renew(self, grant: Grant) -> float:
        """Return how many seconds the lease lasts from now on; 0: it has ended.

        Raises:
            BrokerError: the engine does not answer.
        """

    def change(self, grant: Grant, state: ClusterState) -> ClusterState | None:
        """Set *state*, and return what is agreed on then; None: another node has become the holder, or none is.

        The result is another state if an earlier change of this master, whose answer was lost, has come through.

        Raises:
            BrokerError: the engine does not answer.
        """

    def give_back(self, grant: Grant) -> None:
        """End the lease, so that another node becomes the master at once.

        Raises:
            BrokerError: the engine does not answer; the lease ends by itself.
        """
