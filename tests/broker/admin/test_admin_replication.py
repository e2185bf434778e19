"""What slaves ask beside the log: answers as of RocketMQ 5.3.3 and 5.5.0, recorded from fresh brokers of both."""

from __future__ import annotations

import json
import struct
import time

import pytest

from reput.broker.broker import Broker
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from serving import ServedBroker, served


def make_master(engine, address) -> Broker:
    """Return a broker whose followers reach it one port above."""
    return Broker(engine, address, ha_address="127.0.0.1:10912")


@pytest.fixture(scope="module")
def master(tmp_path_factory) -> ServedBroker:
    """A broker with a message."""
    with served(tmp_path_factory.mktemp("master") / "store", make=make_master) as broker:
        yield broker


def test_a_master_tells_slaves_of_request_modes_and_timers_that_it_has_none(master):
    """As a RocketMQ whose wheel is empty: a slave with a timer wheel would otherwise complain every three seconds."""
    with master.client() as client:
        modes = client.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        assert (modes.code, modes.body_bytes) == (ResponseCode.SUCCESS, b'{"messageRequestModeMap":{}}')
        metrics = json.loads(client.ask(RequestCode.GET_TIMER_METRICS).body_bytes)
        version = {"counter": 0, "stateVersion": 0, "timestamp": master.engine.started}
        assert metrics == {"dataVersion": version, "timingCount": {}}
        read_time, *rest = struct.unpack(">7q", client.ask(RequestCode.GET_TIMER_CHECK_POINT).body_bytes)
        assert rest == [0, 0, 0, 0, master.engine.started, 0]
        # All that was due until now was delivered.
        assert read_time % 1000 == 0
        assert 0 <= time.time() * 1000 - read_time < 60_000


def test_state_that_a_rocketmq_has_left_is_given_on_as_it_is(tmp_path):
    """Its slaves find the checkpoint and the counts of its wheel."""
    with served(tmp_path / "store") as broker, broker.client() as client:
        config = tmp_path / "store" / "config"
        config.mkdir(exist_ok=True)
        checkpoint = struct.pack(">7q", *range(1, 8))
        (config / "timercheck").write_bytes(checkpoint.ljust(4096, b"\0"))
        (config / "messageRequestMode.json").write_text('{"messageRequestModeMap":{"T":{}}}')
        assert client.ask(RequestCode.GET_TIMER_CHECK_POINT).body_bytes == checkpoint
        assert b'"T"' in client.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE).body_bytes


def test_a_master_tells_slaves_where_they_copy_from_before_they_go_online(master):
    """With the end that its log had at its start; a broker that names itself the master changes nothing here."""
    with master.client() as client:
        client.send_message("orders")
        answer = client.ask(RequestCode.EXCHANGE_BROKER_HA_INFO)
        assert answer.code == ResponseCode.SUCCESS
        assert answer.ext_fields == {
            "masterAddress": "{}:{}".format(*master.address),
            "masterHaAddress": "127.0.0.1:10912",
            "masterFlushOffset": "0",
        }
        told = client.ask(RequestCode.EXCHANGE_BROKER_HA_INFO, {"masterHaAddress": "10.0.0.1:10912"})
        assert (told.code, told.ext_fields) == (ResponseCode.SUCCESS, {})


def test_a_slave_answers_that_it_is_no_master(tmp_path):
    """Success without an address, as RocketMQ's."""
    with served(tmp_path / "store", broker_id=1) as broker, broker.client() as client:
        answer = client.ask(RequestCode.EXCHANGE_BROKER_HA_INFO)
        assert (answer.code, answer.ext_fields) == (ResponseCode.SUCCESS, {})
