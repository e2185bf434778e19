"""prepare_copy: makes a directory ready to follow a master, before it is opened.

    new directory         ──▶ an empty first segment, where the copy begins
    a copy of this master ──▶ nothing to do
    any other store       ──▶ only if its log is the beginning of the master's; with *discard*, cut where it parts

Nothing is written before the master was found to fit.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Literal

import msgspec

from reput.access.credentials import NO_CREDENTIALS, Credentials
from reput.errors import BrokerError, ConfigError, FollowError, NotAStore
from reput.lease.agreement import LeaseMembership
from reput.remoting.remoting_client import Unreachable, parse_address
from reput.replication.comparison import find_parting, log_end, lost_records, read_bytes
from reput.replication.ha_protocol import EPOCH
from reput.replication.master_requests import (
    HA_PORT_DISTANCE,
    MasterDescription,
    MasterRequests,
    find_master,
    joined,
)
from reput.replication.master_stream import MasterStream
from reput.store.disk.file_name import file_name
from reput.store.disk.files import Files
from reput.store.log.segments import Segments
from reput.store.recovery.repair import CutPlan, cut
from reput.store.state.followed_master import FollowedMaster, read_followed_master
from reput.store.state.identity import is_store, may_be_store, read_identity
from reput.store.state.store_lock import StoreLock

__all__ = ["Beginning", "MasterAddress", "PreparedCopy", "agreed_epoch", "prepare_copy", "require_epoch"]

Beginning = Literal["earliest", "latest"] | int

# Queues that an error names.
QUEUES_SHOWN = 5

logger = logging.getLogger(__name__)


class MasterAddress(msgspec.Struct, frozen=True):
    """How a person names a master.

    Attributes:
        master: ``host:port`` of its HA port; with *name_server*, the name of a broker.
        name_server: ``host:port``, or several of them, separated by semicolons.
        broker: ``host:port`` where it answers requests; None: one port below the HA port.
        credentials: for the master, and for the name servers.
        membership: of a node of a lease, whose master was agreed on; None: a person names the master.
    """

    master: str
    name_server: str | None = None
    broker: str | None = None
    credentials: Credentials = NO_CREDENTIALS
    membership: LeaseMembership | None = None

    def found(self) -> tuple[str, str | None]:
        """Return the address for requests, and that of the HA port if it is known.

        Raises:
            BrokerError: the name server does not know it.
            ConfigError: an address has another form.
        """
        if self.name_server is not None:
            return find_master(self.name_server, self.master, self.credentials), None
        host, port = split(self.master)
        if self.broker is not None:
            split(self.broker)
            return self.broker, self.master
        return joined(host, port - HA_PORT_DISTANCE), self.master


class PreparedCopy(msgspec.Struct, frozen=True):
    """A directory that may be opened to follow.

    Attributes:
        given: settings that the master's files demand.
        discarded: what was cut off and kept.
    """

    master: FollowedMaster
    given: dict[str, object]
    discarded: CutPlan | None = None


def prepare_copy(
    directory: Path, address: MasterAddress, begin: Beginning = "earliest", *, discard: bool = False
) -> PreparedCopy:
    """Ask the master, and make *directory* ready to follow it.

    Args:
        begin: for a new store: the master's first record, the begin of its last segment, or the begin of the segment
            that holds this commit-log offset.
        discard: cut a log that diverges from the master's where it does; the bytes are kept below ``reput/cut/``.

    Raises:
        BrokerError: the master does not answer.
        FollowError: the store cannot follow it.
        ConfigError, NotAStore, StoreLocked: the directory or an argument is wrong.
    """
    known = read_followed_master(directory)
    # None: the name server does not say, or the master does not say which port is that of followers.
    requests_address: str | None = None
    ha_address: str | None = None
    try:
        requests_address, ha_address = address.found()
        master = MasterRequests(requests_address, address.credentials).describe_when_started()
        require_epoch(master, address.membership, requests_address)
    except BrokerError:
        if known is None or discard or not is_store(directory):
            raise
        # It is read while the master is away, and goes on when the master is back.
        if requests_address is not None and ha_address is not None:
            known = msgspec.structs.replace(known, ha_address=ha_address, address=requests_address)
        return PreparedCopy(known, {})
    if ha_address is None:
        ha_address = master.ha_address(requests_address)
    followed = FollowedMaster(ha_address, requests_address, master.cluster_name, master.broker_name, 0)
    files = Files()
    given: dict[str, object] = {}
    if master.delay_level and read_identity(directory) is None:
        given["message_delay_level"] = master.delay_level
    if known is not None:
        followed = msgspec.structs.replace(followed, begin=known.begin)
        if (known.cluster_name, known.broker_name) != (master.cluster_name, master.broker_name):
            raise FollowError(
                f"the store follows another broker: broker_name={known.broker_name} cluster={known.cluster_name} "
                f"asked={master.broker_name} of {master.cluster_name} store={directory}",
                "Follow this broker into a store of its own.",
            )
    if is_store(directory):
        discarded = settle_difference(directory, followed, master, known, discard, address)
        if discarded is not None or known != followed:
            record_master(directory, followed, known, files)
        return PreparedCopy(followed, given, discarded)
    if known is None and not may_be_store(directory):
        raise NotAStore(
            f"the directory is not empty and holds no commit log: store={directory}",
            "Name an empty or new directory, or a copy that was begun earlier.",
        )
    followed = msgspec.structs.replace(followed, begin=first_offset(master, begin))
    segment = directory / "commitlog" / file_name(followed.begin)
    files.make_directory(directory)
    files.make_directory(segment.parent)
    # First the master: a store that is found without it would take messages.
    followed.write(directory, files)
    if segment.exists() and not segment.stat().st_size:
        # Its making was interrupted, on a file system that knows no files without a name.
        files.remove(segment)
    if not segment.exists():
        files.create(segment, master.segment_size)
    files.force_directory(segment.parent)
    files.force_directory(directory)
    given["mapped_file_size_commit_log"] = master.segment_size
    return PreparedCopy(followed, given)


def require_epoch(master: MasterDescription, membership: LeaseMembership | None, address: str) -> None:
    """Refuse a broker that is not the master of the epoch that the nodes of a lease have agreed on.

    Raises:
        BrokerError: it is not, or not yet.
    """
    if membership is not None and master.epoch != membership.epoch:
        raise BrokerError(
            f"another epoch's broker answers there: epoch={master.epoch} agreed={membership.epoch} address={address}",
            "Wait: the nodes agree on the next master.",
        )


def agreed_epoch(membership: LeaseMembership | None) -> dict[str, str]:
    """Return the fields of a request for the log that name the agreed epoch."""
    return {} if membership is None else {EPOCH: str(membership.epoch)}


def record_master(directory: Path, followed: FollowedMaster, known: FollowedMaster | None, files: Files) -> None:
    """Record which master a store follows, if it still follows *known*.

    Raises:
        FollowError: it was promoted meanwhile, or follows another.
        StoreLocked: another process writes the store.
    """
    lock = StoreLock(directory)
    try:
        if read_followed_master(directory) != known:
            raise FollowError(
                f"another command has changed meanwhile which master the store follows: store={directory}",
                "Look at `reput status STORE`, then start again.",
            )
        followed.write(directory, files)
    finally:
        lock.close()


def first_offset(master: MasterDescription, begin: Beginning) -> int:
    """Return where a new copy begins: at a segment's begin, because only there a record is known to begin.

    Raises:
        ConfigError: the master does not have that offset.
    """
    size = master.segment_size
    if begin == "earliest":
        return master.offset_min
    if begin == "latest":
        return max(master.offset_min, master.offset_end - master.offset_end % size)
    if not master.offset_min <= begin <= master.offset_end:
        raise ConfigError(
            f"the master's log does not hold that offset: from={begin} master_begin={master.offset_min} "
            f"master_end={master.offset_end}",
            "Name one between them, or earliest or latest.",
        )
    return max(master.offset_min, begin - begin % size)


def settle_difference(
    directory: Path,
    followed: FollowedMaster,
    master: MasterDescription,
    known: FollowedMaster | None,
    discard: bool,
    address: MasterAddress,
) -> CutPlan | None:
    """Refuse a store whose log is not the beginning of the master's; with *discard*, cut it there. Return the cut.

    A copy of this master that only goes on is compared when it connects.

    Raises:
        FollowError: it is not.
    """
    if known is not None and not discard:
        return None
    segments = Segments(directory / "commitlog")
    if segments.segment_size != master.segment_size:
        raise FollowError(
            f"the master's segments have another size: mapped_file_size_commit_log={master.segment_size} "
            f"ours={segments.segment_size}",
            "Follow it into a new store.",
        )
    lock = StoreLock(directory)
    try:
        plan = difference(directory, segments, followed, master, address)
    finally:
        lock.close()
    if plan is None:
        return None
    if not discard:
        queues = ", ".join(
            f"{queue.topic}@{queue.queue_id}: {queue.queue_offset} to {queue.queue_offset_end - 1}"
            for queue in plan.queues[:QUEUES_SHOWN]
        )
        raise FollowError(
            f"this log has records that the master lacks: from={plan.cut_at} until={plan.until} "
            f"records={plan.records} queues={queues or 'none'} store={directory}",
            "`reput follow MASTER STORE --discard` moves them to reput/cut/ in the store, where nothing is lost, and "
            "follows from there.",
        )
    logger.warning("records that the master lacks are cut off and kept: from=%d until=%d", plan.cut_at, plan.until)
    return cut(directory, plan.cut_at)


def difference(
    directory: Path,
    segments: Segments,
    followed: FollowedMaster,
    master: MasterDescription,
    address: MasterAddress,
) -> CutPlan | None:
    """Return what of our log is not the master's, None if it is the beginning of the master's.

    Raises:
        FollowError: the two have nothing in common.
    """
    own_end = log_end(directory)
    begin, end = max(segments.offset_min, master.offset_min), min(own_end, master.offset_end)
    if begin > end or (begin == end and own_end > segments.offset_min):
        raise FollowError(
            f"the two logs have no byte in common: own_begin={segments.offset_min} own_end={own_end} "
            f"master_begin={master.offset_min} master_end={master.offset_end}",
            "Follow the master into a new store.",
        )

    def read_log(at: int, until: int) -> bytes:
        return read_bytes(segments, at, until)

    def open_stream(at: int) -> MasterStream:
        is_reput = master.epoch is not None
        return MasterStream(
            followed.ha_address,
            at,
            segments.segment_size,
            is_reput=is_reput,
            credentials=address.credentials,
            fields=agreed_epoch(address.membership),
        )

    parting = find_parting(open_stream, read_log, begin, end)
    if parting >= own_end:
        return None
    plan = lost_records(directory, parting)
    if plan.cut_at <= begin:
        raise FollowError(
            f"the master has another log from its first byte on: from={begin} own_end={own_end} "
            f"master_end={master.offset_end}",
            "It is another broker's log. Follow the master into a new store.",
        )
    return plan


def split(address: str) -> tuple[str, int]:
    """Return host and port.

    Raises:
        ConfigError: *address* has another form.
    """
    with contextlib.suppress(Unreachable):
        host, port = parse_address(address)
        if port > 0:
            return host, port
    raise ConfigError(
        f"a master is named HOST:PORT, with its HA port: master={address!r}",
        "Or name its broker, with --name-server HOST:PORT.",
    )
