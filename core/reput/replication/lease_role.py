"""begin_role: asks what the nodes of a broker have agreed on, and opens the store as the master or as a follower.

    no holder, and this store is in the in-sync set ──▶ take the lease ──▶ begin its epoch ──▶ the master
    else ──────────────────────────────────────────────────────────────▶ a follower of the agreed master
    LeaseRole ── the agreed epoch is another, or this node may take the lease ──▶ the role ends

A role lasts as long as its process: when it ends, so does the broker, and the next one asks again. A store is opened
for writing before the lease is taken: only what its disk has at that moment makes it the master.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

from reput.access.credentials import Credentials
from reput.consume.registry.topics import is_system_topic
from reput.embedded.store_engine import StoreEngine
from reput.errors import BrokerError, ConfigError, StoreError
from reput.lease.agreement import Agreed, Agreement, ClusterState, LeaseMembership, Node
from reput.lease.held_lease import HeldLease, boot_time
from reput.process.control.configuration import Configuration
from reput.replication.copy_preparation import MasterAddress
from reput.replication.following import open_slave
from reput.replication.following_engine import FollowingEngine
from reput.settings import Settings
from reput.store.disk.files import Files
from reput.store.disk.shortages import go_back, tell_store_error
from reput.store.following_store import FollowingMessageStore
from reput.store.message_store import MessageStore
from reput.store.service.service_thread import ServiceThread
from reput.store.service.wake import Wake
from reput.store.state.followed_master import forget_followed_master, read_followed_master
from reput.store.state.identity import new_store_id
from reput.store.state.lease_mark import LEASE_MARK, LeaseMark, read_lease_mark
from reput.store.state.lease_row import LeaseRow
from reput.store.state.store_lock import StoreLock

__all__ = ["LeaseRole", "MasterEngine", "RoleOpener"]

RETRY_S = 0.5
# How often a follower looks whether the lease is free.
LOOK_SHARE, LOOK_MAX_S = 1 / 10, 1.0
MASTER_SETTINGS = {"broker_role": "SYNC_MASTER", "flush_disk_type": "SYNC_FLUSH", "broker_id": 0}

logger = logging.getLogger(__name__)


class OpenMaster(Protocol):
    """Opens a store as the master of an epoch, with settings in place of those given; errors as of `MasterEngine`."""

    def __call__(self, epoch: int, **given: Any) -> StoreEngine: ...


class LoadSettings(Protocol):
    """Returns the store's settings, with some in place of those given."""

    def __call__(self, **given: Any) -> Settings: ...


class MasterEngine(StoreEngine):
    """The engine of a store that has become the master by a lease."""

    def __init__(
        self, directory: Path, settings: Settings, configuration: Configuration, lock_timeout: float, epoch: int
    ) -> None:
        """Begin *epoch* at the log's end, durably, before anything else knows the store."""
        self.epoch = epoch
        super().__init__(directory, settings, "processes", configuration, lock_timeout=lock_timeout)

    def open_writer(
        self,
        directory: Path,
        settings: Settings,
        hooks: Sequence[object],
        change_settings: Collection[str],
        lock_timeout: float | None,
    ) -> MessageStore:
        """Return the writer, in its epoch.

        Raises:
            StoreError: another program has written the store since the lease was taken.
        """
        writer = super().open_writer(directory, settings, hooks, change_settings, lock_timeout)
        try:
            if writer.epochs.epoch >= self.epoch:
                raise StoreError(
                    f"another program has written the store while it became the master: store={directory} "
                    f"epoch={writer.epochs.epoch} agreed={self.epoch}"
                )
            writer.begin_epoch(self.epoch)
            writer.durability.write_snapshot(clean=False)
        except BaseException as error:
            go_back(error, writer.give_back)
            raise
        return writer


class LeaseRole(ServiceThread):
    """What this node is until it ends: the master if *held* is its lease, else the follower of *state*'s master."""

    def __init__(
        self,
        agreement: Agreement,
        member: str,
        state: ClusterState,
        engine: StoreEngine,
        held: HeldLease | None = None,
        look_time: float = 0.0,
    ) -> None:
        super().__init__("reput-role", engine.writer.threads)
        self.agreement = agreement
        self.member = member
        self.state = state
        self.engine = engine
        self.held = held
        self.look_time = look_time
        # A follower's: which member held the lease when it looked last.
        self.holder: str | None = state.master.member
        self.on_end: Callable[[], None] = lambda: None
        self.complaint = ""

    def begin(self, on_end: Callable[[], None], *, discard: bool) -> None:
        """Call *on_end*, from some thread, when the role ends. *discard*: also if the log differs from the master's."""
        self.on_end = on_end
        self.discard = discard
        if self.held is None:
            self.start()
            return
        self.held.on_lost = on_end
        if not self.held.holds():
            on_end()

    def end(self) -> None:
        """Stop looking, and give back the lease."""
        if self.held is None:
            self.stop()
        else:
            self.held.release()

    def row(self) -> LeaseRow:
        """Return what this node is, for `reput status` and metrics."""
        held = self.held
        state = self.state if held is None else held.state
        return LeaseRow(
            name=self.agreement.name,
            member=self.member,
            role="follower" if held is None else "master",
            epoch=state.epoch,
            holder=self.holder if held is None or held.holds() else None,
            master=state.master.address,
            in_sync=state.in_sync,
            seconds_left=None if held is None else round(max(held.deadline - held.clock(), 0.0), 3),
        )

    def seconds_to_next(self) -> float:
        """As of `ServiceThread`."""
        return self.look_time

    def do_round(self) -> None:
        """Look whether this node follows the right master."""
        assert isinstance(self.engine, FollowingEngine)
        try:
            agreed = self.agreement.read()
        except BrokerError as error:
            if str(error) != self.complaint:
                self.complaint = str(error)
                logger.warning("it is not known whether the master holds its lease: reason=%s", error)
            return
        self.complaint = ""
        self.holder = agreed.holder
        state = agreed.state
        if state is not None and state.epoch == self.state.epoch:
            self.state = state
        has_diverged = self.discard and self.engine.follower.error is not None
        is_next = state is not None and state.epoch != self.state.epoch
        if has_diverged or is_next or may_take(agreed, self.member):
            logger.info("this node looks for another role: agreed=%s holder=%s", state, agreed.holder)
            self.stopping = True
            self.on_end()


class RoleOpener:
    """Opens one store in the role that its node has now."""

    def __init__(
        self,
        directory: Path,
        agreement: Agreement,
        address: str,
        ha_address: str,
        *,
        load: LoadSettings,
        open_master: OpenMaster,
        config: Path | None,
        assignments: list[str],
        given: dict[str, Any],
        credentials: Credentials,
        discard: bool,
        lock_timeout: float,
    ) -> None:
        """*address*, *ha_address*: where clients and followers reach this node."""
        self.directory = directory
        self.agreement = agreement
        self.address = address
        self.ha_address = ha_address
        self.load = load
        self.open_master = open_master
        self.config = config
        self.assignments = assignments
        self.given = given
        self.credentials = credentials
        self.discard = discard
        self.lock_timeout = lock_timeout
        self.complaint = ""
        mark = read_lease_mark(directory)
        self.member = new_store_id() if mark is None else mark.member

    def open(self, *, waits: bool) -> LeaseRole:
        """Return the role, with the open store, once there is one: a master may be starting, or its lease has to end.

        Args:
            waits: wait for the engine for agreement, too, instead of reporting that it does not answer.

        Raises:
            BrokerError: it does not answer.
            ConfigError: the engine knows less than the store.
            FollowError, StoreError: as of `open_slave`, `StoreEngine`.
        """
        pause = Wake()
        while True:
            agreed = None
            try:
                agreed = self.agreement.read()
                self.check(agreed)
                if agreed.state is None or may_take(agreed, self.member):
                    role = self.lead(agreed)
                else:
                    role = self.follow(agreed.state)
                if role is not None:
                    return role
            except BrokerError as error:
                if agreed is None and not waits:
                    raise
                if str(error) != self.complaint:
                    self.complaint = str(error)
                    logger.warning("this node has no role yet: reason=%s", error)
            pause.wait(RETRY_S)

    def check(self, agreed: Agreed) -> None:
        """Refuse what the store knows to be wrong.

        Raises:
            ConfigError: the state is older than the store, or of another broker, or a copy would begin it.
        """
        mark = read_lease_mark(self.directory)
        state = agreed.state
        if mark is not None and mark.name != self.agreement.name:
            raise ConfigError(
                f"the store has another lease: lease={mark.name} asked={self.agreement.name} store={self.directory}",
                f"Name that one, or remove reput/{LEASE_MARK} in the store if it was given up.",
            )
        if mark is not None and mark.epoch > (0 if state is None else state.epoch):
            raise ConfigError(
                f"the engine for agreement has forgotten what the nodes agreed on: "
                f"epoch={None if state is None else state.epoch} epoch_of_store={mark.epoch} store={self.directory}",
                f"If it is lost for good, remove reput/{LEASE_MARK} in all stores. Start the one with the longest log "
                "first; the others then follow it.",
            )
        if state is None and read_followed_master(self.directory) is not None:
            raise ConfigError(
                f"a copy cannot be the first master of a lease: store={self.directory}",
                "Start the master of this copy with --lease first.",
            )

    # The master.

    def lead(self, agreed: Agreed) -> LeaseRole | None:
        """Become the master; None: another node was faster.

        Raises:
            BrokerError: the engine for agreement does not answer.
            StoreError: the store cannot be opened.
        """
        state = agreed.state
        given = dict(MASTER_SETTINGS)
        if state is not None:
            given |= {"broker_name": state.broker_name, "broker_cluster_name": state.cluster_name}
        held = self.take(agreed, self.load(**given))
        if held is None:
            return None
        try:
            engine = self.open_master(held.epoch, **given)
        except BaseException:
            held.release()
            raise
        describe_topics(engine)
        return LeaseRole(self.agreement, self.member, held.state, engine, held)

    def take(self, agreed: Agreed, settings: Settings) -> HeldLease | None:
        """Take the lease for what the store has on its disk; None: another node was faster.

        The store is open meanwhile, so no other process can write it.
        """
        with tell_store_error(f"the store cannot be opened: store={self.directory}"):
            writer = self.open_writer(settings)
            try:
                held = self.ask(agreed, writer, settings)
            finally:
                writer.give_back()
            if held is None:
                return None
            try:
                self.settle(held.epoch)
            except BaseException:
                held.release()
                raise
        logger.info(
            "this node becomes the master: epoch=%d commit_log_offset=%d in_sync=%s store=%s",
            held.epoch,
            writer.appended,
            ",".join(held.state.in_sync),
            self.directory,
        )
        return held

    def open_writer(self, settings: Settings) -> MessageStore:
        """Return the writer of the store, as a copy if it is one."""
        master = read_followed_master(self.directory)
        if master is not None:
            return FollowingMessageStore(self.directory, settings, master, lock_timeout=self.lock_timeout)
        return MessageStore(self.directory, settings, lock_timeout=self.lock_timeout)

    def ask(self, agreed: Agreed, writer: MessageStore, settings: Settings) -> HeldLease | None:
        """Ask for the lease; None: another node was faster."""
        state, member = agreed.state, self.member
        if read_lease_mark(self.directory) is None:
            # First: a member that nobody could be any more would be waited for.
            LeaseMark(self.agreement.name, member, 0).write(self.directory, writer.files)
        # The next opening may begin an epoch of its own: each one after a crash does.
        asked = ClusterState(
            max(state.epoch if state is not None else 0, writer.epochs.epoch + 1) + 1,
            Node(member, self.address, self.ha_address),
            state.in_sync if state is not None else (member,),
            settings.broker_cluster_name,
            settings.broker_name,
        )
        began = boot_time()
        grant = self.agreement.take(agreed, asked)
        if grant is None:
            return None
        held = HeldLease(self.agreement, grant, asked, began)
        held.start()
        return held

    def settle(self, epoch: int) -> None:
        """Record that the store is a master's."""
        files = Files()
        lock = StoreLock(self.directory)
        try:
            LeaseMark(self.agreement.name, self.member, epoch).write(self.directory, files)
            if read_followed_master(self.directory) is not None:
                forget_followed_master(self.directory, files)
        finally:
            lock.close()

    # A follower.

    def follow(self, state: ClusterState) -> LeaseRole:
        """Follow the agreed master.

        Raises:
            BrokerError: it does not answer.
            FollowError: the store's log is not the beginning of its log.
        """
        master = MasterAddress(
            state.master.ha_address,
            broker=state.master.address,
            credentials=self.credentials,
            membership=LeaseMembership(self.member, state.epoch),
        )
        try:
            engine = self.open_copy(master, discard=self.discard)
        except BrokerError:
            if not self.discard:
                raise
            # A copy is read while the master is away.
            engine = self.open_copy(master, discard=False)
        LeaseMark(self.agreement.name, self.member, state.epoch).write(self.directory, engine.writer.files)
        look_time = min(engine.settings.lease_time / 1000 * LOOK_SHARE, LOOK_MAX_S)
        return LeaseRole(self.agreement, self.member, state, engine, look_time=look_time)

    def open_copy(self, master: MasterAddress, *, discard: bool) -> FollowingEngine:
        """Open the store as a copy."""
        return open_slave(
            self.directory,
            master,
            config=self.config,
            assignments=self.assignments,
            lock_timeout=self.lock_timeout,
            discard=discard,
            **self.given,
        )


def describe_topics(engine: StoreEngine) -> None:
    """Describe the topics of which messages have come along, but not yet what the former master said of them."""
    topics = engine.services.topics
    names = [name for name in engine.writer.queue_offsets.snapshot() if not is_system_topic(name)]
    topics.add_new(config for config in map(topics.find, names) if config is not None)
    topics.keep_new()


def may_take(agreed: Agreed, member: str) -> bool:
    """Tell whether a member may become the master: it has every acknowledged message, and no other holds the lease."""
    state = agreed.state
    return state is not None and member in state.in_sync and agreed.holder in (None, member)
