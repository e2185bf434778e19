"""A master with a lease and its followers in one process: which epoch they accept, and what counts as acknowledged."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from command_line import run_reput
from delivering import wait_until
from replication.copies import INLINE, SEGMENT
from reput.broker.broker import Broker
from reput.errors import BrokerError
from reput.lease.agreement import ClusterState, Grant, LeaseMembership, Node
from reput.lease.held_lease import HeldLease
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from reput.replication.copy_preparation import MasterAddress, prepare_copy
from reput.replication.follower import FollowState
from reput.replication.following import FollowingStore, open_copy
from reput.replication.ha_protocol import END, EPOCH, MEMBER
from reput.replication.ha_server import HaServer
from reput.replication.master_stream import MasterStream
from serving import ServedBroker, send_fields, served

EPOCH_HELD = 5


class Master:
    """A broker with a lease that the test takes away."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.ha_address = "{}:{}".format(*self.listener.getsockname())
        self.now = 0.0
        self.broker: ServedBroker = None  # type: ignore[assignment]

    def make(self, engine, address) -> Broker:
        """Return the broker, of an epoch that the agreement has given to it."""
        writer = engine.writer
        writer.durability.epochs = writer.epochs.begin(writer.appended, 1, number=EPOCH_HELD)
        self.state = ClusterState(EPOCH_HELD, Node(writer.store_id, address, self.ha_address), ("x",), "c", "n")
        agreement: Any = SimpleNamespace(change=lambda grant, state: state)
        self.lease = HeldLease(agreement, Grant("1", 1000.0, 1, 1), self.state, 0.0, clock=lambda: self.now)
        self.server = HaServer(engine, self.listener)
        broker = Broker(engine, address, ha_server=self.server, ha_address=self.ha_address, lease=self.lease)
        self.server.start(broker.turn)
        return broker

    def put(self, count: int) -> int:
        """Put messages; return where the log ends."""
        with self.broker.client() as client:
            for _ in range(count):
                assert client.send_message("orders", b"x" * 1000, {"WAIT": "false"}).code == ResponseCode.SUCCESS
        end = self.broker.engine.appended
        wait_until(lambda: self.broker.engine.log_end() == end)
        return end

    def address(self, epoch: int) -> MasterAddress:
        """Return how a node names it."""
        return MasterAddress(
            self.ha_address, broker="{}:{}".format(*self.broker.address), membership=LeaseMembership("b", epoch)
        )

    def stream(self, begin: int, **fields: object) -> MasterStream:
        """Return a connection to the HA port."""
        texts = {name: str(value) for name, value in fields.items()}
        return MasterStream(self.ha_address, begin, SEGMENT, is_reput=True, fields=texts)


@pytest.fixture
def master(tmp_path) -> Iterator[Master]:
    """A master of the epoch 5."""
    master = Master()
    settings = {"broker_role": "SYNC_MASTER", "flush_disk_type": "SYNC_FLUSH"}
    with served(tmp_path / "master", make=master.make, **settings) as broker:
        master.broker = broker
        yield master
        master.server.stop()


@contextmanager
def copying(master: Master, path, epoch: int) -> Iterator[FollowingStore]:
    """Follow as a node of the lease."""
    _, engine = open_copy(path, master.address(epoch), "earliest", **INLINE)
    store = FollowingStore(engine)
    try:
        yield store
    finally:
        store.close()


def test_a_node_follows_the_master_of_the_agreed_epoch_and_counts(master, tmp_path):
    """By its own name, once it has the log."""
    end = master.put(3)
    with copying(master, tmp_path / "copy", EPOCH_HELD):
        wait_until(lambda: master.server.member_ends() == {"b": end})
        end = master.put(3)
        wait_until(lambda: master.server.member_ends() == {"b": end})
    wait_until(lambda: master.server.member_ends() == {})


def test_a_master_of_another_epoch_is_refused(master, tmp_path):
    """An old one that does not know it, or a new one of which this node has not heard; nothing is written."""
    master.put(3)
    for epoch in (EPOCH_HELD - 1, EPOCH_HELD + 1):
        with pytest.raises(BrokerError, match=f"epoch=5 agreed={epoch}"):
            prepare_copy(tmp_path / "copy", master.address(epoch))
        with pytest.raises(BrokerError, match="not the master of that epoch"):
            master.stream(1, **{EPOCH: epoch})
    assert not (tmp_path / "copy").exists()


def test_a_copy_does_not_go_on_at_a_master_of_another_epoch(master, tmp_path):
    """It waits, for its own node will hear of the next master."""
    end = master.put(3)
    with copying(master, tmp_path / "copy", EPOCH_HELD) as store:
        wait_until(lambda: store.durable == end)
    with copying(master, tmp_path / "copy", EPOCH_HELD) as store:
        store._follower.membership = LeaseMembership("b", EPOCH_HELD + 1)
        wait_until(lambda: store.following.state is FollowState.WAITING)
        # The broker says it when it is asked who it is, or its HA port if the connection was under way.
        wait_until(
            lambda: (
                "another epoch's broker" in str(store.following.reason) or "that epoch" in str(store.following.reason)
            )
        )


def test_what_a_node_asks_for_counts_only_once_it_has_compared_it(master):
    """Its log may have diverged below; a node that has nothing to compare counts at once."""
    end = master.put(5)
    with master.stream(end - 100, **{EPOCH: EPOCH_HELD, MEMBER: "b", END: end}) as stream:
        wait_until(lambda: len(master.server.followers()) == 1)
        stream.report(end - 100)
        assert master.server.member_ends() == {}
        next(stream.pieces(1.0, lambda: None))
        stream.report(end)
        wait_until(lambda: master.server.member_ends() == {"b": end})
    with master.stream(end, **{EPOCH: EPOCH_HELD, MEMBER: "c", END: end}):
        wait_until(lambda: master.server.member_ends() == {"c": end})


def test_a_follower_that_is_no_node_never_counts(master):
    """A slave of RocketMQ, or a copy for other purposes: it has the log, and may not become the master."""
    end = master.put(5)
    with master.stream(end) as stream:
        wait_until(lambda: len(master.server.followers()) == 1)
        stream.report(end)
        assert master.server.member_ends() == {}


def test_a_master_without_its_lease_answers_nothing(master):
    """Sends, pulls and requests for the log: clients go elsewhere, followers wait for the next master."""
    end = master.put(5)
    with master.broker.client() as client:
        # Once the queue has the messages.
        wait_until(lambda: client.pull("g", "orders").code == ResponseCode.SUCCESS)
        master.now = 900.0
        assert client.send_message("orders").code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert client.pull("g", "orders").code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}).code != ResponseCode.SUCCESS
        with pytest.raises(BrokerError, match="epoch=None"):
            master.stream(1, **{EPOCH: EPOCH_HELD})
    assert master.broker.engine.appended == end


def test_a_lease_counts_however_the_master_stores(tmp_path):
    """Messages that wait for neither disk nor followers are refused without it, too."""
    master = Master()
    with served(tmp_path / "master", make=master.make) as broker, broker.client() as client:
        codes = []
        for number, now in enumerate((0.0, 0.0, 900.0)):
            master.now = now
            codes.append(client.send_message("orders", b"body", {"UNIQ_KEY": f"AC{number}"}).code)
        assert codes == [ResponseCode.SUCCESS, ResponseCode.SUCCESS, ResponseCode.SERVICE_NOT_AVAILABLE]
        master.server.stop()


def test_a_message_that_waits_when_the_lease_ends_is_not_acknowledged(master):
    """Although a follower acknowledges it then: the next master may have begun."""
    end = master.put(5)
    broker = master.broker.broker
    with (
        master.stream(end, **{EPOCH: EPOCH_HELD, MEMBER: "x", END: end}) as stream,
        master.broker.client() as client,
    ):
        broker.in_sync.agreed = broker.in_sync.required = frozenset((master.state.master.member, "x"))
        wait_until(lambda: master.server.member_ends() == {"x": end})
        opaque = client.begin(RequestCode.SEND_MESSAGE_V2, send_fields("orders"), b"body")
        master.broker.reaches(lambda: bool(broker.replicas.waiting))
        next(stream.pieces(1.0, lambda: None))
        master.now = 900.0
        stream.report(master.broker.engine.log_end())
        assert client.answer_to(opaque).code == ResponseCode.FLUSH_SLAVE_TIMEOUT


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--discard"], "only a node of a lease discards"),
        (["--lease", "orders"], "etcd://HOST:PORT/NAME"),
        (["--lease", "etcd://h:1/orders", "--follow", "h:2"], "the lease decides which master is followed"),
        (["--lease", "etcd://h:1/orders", "--ha-listen", "none", "--listen", "127.0.0.1:0"], "needs an HA port"),
    ],
)
def test_options_that_contradict_a_lease_are_refused(tmp_path, options, text):
    """Before the store is touched."""
    refused = run_reput("serve", tmp_path / "store", "--name-server", "none", *options)
    assert refused.code == 2
    assert text in refused.stderr
    assert not (tmp_path / "store").exists()
