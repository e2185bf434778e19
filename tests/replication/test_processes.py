"""Real processes: `reput serve` followed by `reput follow` and by `reput serve --follow`, killed under load."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path

import pytest

import reput
from command_line import REPUT, run_reput
from delivering import wait_until
from interop.clients.brokers import Launched, ReputBroker, free_port
from replication.copies import SEGMENT, Copy, assert_same_log, ha_port, kill_whole, send
from reput.errors import BrokerError
from reput.remoting.response_code import ResponseCode
from reput.replication.master_requests import MasterRequests
from reput.store.state.followed_master import read_followed_master
from serving import RawClient

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SMALL = {"mappedFileSizeCommitLog": SEGMENT}


def end_of(broker: ReputBroker) -> int:
    """Return where a broker's log ends; -1: it does not answer."""
    try:
        return MasterRequests(broker.address).bounds()[1]
    except BrokerError:
        return -1


def acknowledged(broker: ReputBroker) -> int:
    """Return what a broker's only follower has acknowledged."""
    rows = json.loads(MasterRequests(broker.address).body(907))["haConnectionInfo"]
    return max((row["slaveAckOffset"] for row in rows), default=-1)


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.long)])
def test_a_copy_that_is_killed_under_load_is_the_same_log_in_the_end(reput_broker, tmp_path, kills):
    """Also with a master that is killed: it goes on from its durable end each time."""
    chance = random.Random(kills)
    master = reput_broker(settings=SMALL)
    copy = Copy(master.address, tmp_path / "copy")
    stop = threading.Event()

    def load() -> None:
        number = 0
        while not stop.is_set():
            try:
                send(master.name_server, "orders", 100, begin=number)
            except BrokerError:
                continue
            number += 100

    thread = threading.Thread(target=load)
    thread.start()
    try:
        for _ in range(kills):
            before = end_of(master)
            wait_until(lambda before=before: end_of(master) > before + 100_000)
            if chance.random() < 0.3:
                master.kill_broker()
                wait_until(lambda: end_of(master) > 0)
            copy.launched.kill()
            copy.launch()
    finally:
        stop.set()
        thread.join()
    end = end_of(master)
    wait_until(lambda: acknowledged(master) >= end)
    copy.launched.stop()
    assert copy.launched.process.returncode == 0
    assert_same_log(master.directory, copy.directory, 0, end)
    assert run_reput("check", copy.directory).code == 0


def test_a_slave_serves_reads_when_its_master_is_gone_and_takes_messages_once_promoted(reput_broker, tmp_path):
    """Clients are told of it under the master's name, with the id 1."""
    names = reput_broker("names")
    settings = {**SMALL, "brokerName": "broker-b"}
    master = ReputBroker(tmp_path / "master", settings, name_server=names.name_server)
    host, _, port = master.address.rpartition(":")
    with RawClient((host, int(port))) as client:
        for _ in range(20):
            assert client.send_message("orders").code == ResponseCode.SUCCESS
    slave = Slave(master, tmp_path / "slave", names.name_server)
    wait_until(lambda: acknowledged(master) >= end_of(master))
    cluster = MasterRequests(names.name_server).json(106)
    assert cluster["brokerAddrTable"]["broker-b"]["brokerAddrs"] == {"0": master.address, "1": slave.address}
    kill_whole(master)
    host, _, port = slave.address.rpartition(":")
    with RawClient((host, int(port))) as client:
        wait_until(lambda: client.pull("g", "orders").code == ResponseCode.SUCCESS)
        assert client.send_message("orders").code == ResponseCode.SERVICE_NOT_AVAILABLE
    slave.launched.stop()
    assert read_followed_master(slave.directory) is not None
    assert run_reput("promote", slave.directory).code == 0
    with reput.open(slave.directory, mode="inline") as store:
        assert store.put(reput.Message("orders", b"x", queue_id=0)).queue_offset == 20


def test_slaves_are_answered_on_both_ports(reput_broker):
    """RocketMQ's ask for topics and timers two ports below that of clients, and for the rest on that itself."""
    broker = reput_broker(settings=SMALL, port=free_port())
    send(broker.name_server, "orders", 1)
    host, _, port = broker.address.rpartition(":")
    main, below = MasterRequests(broker.address), MasterRequests(f"{host}:{int(port) - 2}")
    for code in (21, 43, 45, 201, 402, 61, 60):
        answer, other = main.ask(code), below.ask(code)
        assert (answer.code, other.code) == (ResponseCode.SUCCESS, ResponseCode.SUCCESS)
        # The checkpoint has the time.
        assert answer.body_bytes == other.body_bytes or code == 60
    assert main.ask(9999).code == below.ask(9999).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


class Slave:
    """`reput serve --follow`."""

    def __init__(self, master: ReputBroker, directory: Path, name_server: str) -> None:
        self.directory = directory
        log = directory.with_name(f"{directory.name}.log")
        command = [
            REPUT,
            "serve",
            directory,
            "--follow",
            f"127.0.0.1:{ha_port(master.address)}",
            "--name-server",
            name_server,
        ]
        command += ["--follow-broker", master.address, "--listen", "127.0.0.1:0"]
        self.launched = Launched([str(word) for word in command], log)
        self.launched.wait_for(lambda: "ready " in log.read_text(), "reput serve --follow")
        (line,) = [line for line in log.read_text().splitlines() if line.startswith("ready ")]
        self.address = dict(field.split("=", 1) for field in line.split()[1:])["broker"]


@pytest.mark.long
def test_every_message_that_a_synchronous_master_acknowledged_survives_twenty_promotions(tmp_path, ending):
    """Once, and in order; the old master follows the new one with --discard."""
    settings = {**SMALL, "brokerRole": "SYNC_MASTER", "slaveTimeout": 1000}
    a, b = tmp_path / "a", tmp_path / "b"
    master = ReputBroker(a, settings)
    copy = Copy(master.address, b)
    sent: list[int] = []
    number = 0
    for round in range(20):
        wait_until(lambda master=master: acknowledged(master) >= 0)
        killer = threading.Thread(target=kill_whole, args=(master,))
        # Killed while messages come.
        last = len(sent) + random.Random(round).randrange(20, 60)
        host, _, port = master.address.rpartition(":")
        try:
            with RawClient((host, int(port))) as client:
                while True:
                    number += 1
                    answer = client.send_message("orders", b"%d" % number)
                    if answer.code == ResponseCode.SUCCESS:
                        sent.append(number)
                    if len(sent) == last and not killer.ident:
                        killer.start()
        except (EOFError, OSError):
            pass
        killer.join()
        copy.launched.stop()
        assert run_reput("promote", b).code == 0
        a, b = b, a
        master = ReputBroker(a, settings)
        copy = Copy(master.address, b, "--discard")
    copy.launched.stop()
    master.stop()
    with reput.open(a, read_only=True) as store:
        stored = [int(record.body) for record in store.records(0) if record.topic == "orders"]
    assert len(sent) >= 400
    assert len(stored) == len(set(stored))
    assert stored == sorted(stored)
    assert set(sent) <= set(stored)


def test_follow_says_in_one_sentence_why_it_does_not(tmp_path):
    """A master that is not there, a wrong address, a directory with something else in it."""
    nobody = run_reput("follow", "127.0.0.1:1", tmp_path / "copy")
    assert nobody.code == 3
    assert "does not answer" in nobody.stderr
    assert not (tmp_path / "copy").exists()
    for address in ("broker-a", "a..b:10912", "127.0.0.1:0"):
        assert "a master is named HOST:PORT" in run_reput("follow", address, tmp_path / "copy").stderr
    assert "form HOST:PORT: --listen" in run_reput("serve", tmp_path / "new", "--listen", "a..b:10911").stderr
    refused = run_reput("serve", tmp_path / "copy", "--set", "brokerRole=SLAVE")
    assert "a slave follows a master" in refused.stderr
