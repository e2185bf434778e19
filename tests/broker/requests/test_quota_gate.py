"""Quotas of a broker: what is over them is refused in RocketMQ's words, or comes later, and is seen in the figures."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from delivering import wait_until
from reput.broker.requests import quota_gate
from reput.broker.state import quotas as quotas_module
from reput.broker.state.quotas import Quotas, parse_quotas
from reput.errors import ConfigError
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from serving import RawClient, served


def send(
    client: RawClient,
    topic: str = "orders",
    body: bytes = b"x",
    count: int = 1,
    after: Callable[[], None] = lambda: None,
) -> list[int]:
    """Send *count* messages at once, and call *after*; return the code of each answer."""
    fields = {
        "producerGroup": "producers",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "1",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1",
        "flag": "0",
    }
    opaques = [client.begin(RequestCode.SEND_MESSAGE, fields, body) for _ in range(count)]
    after()
    return [client.answer_to(opaque).code for opaque in opaques]


def pull(client: RawClient, group: str, offset: int, count: int = 32) -> tuple[int, int]:
    """Pull from the queue; return the code, and where the next pull begins."""
    fields = {
        "consumerGroup": group,
        "topic": "orders",
        "queueId": "0",
        "queueOffset": str(offset),
        "maxMsgNums": str(count),
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
    }
    answer = client.ask(RequestCode.PULL_MESSAGE, fields)
    return answer.code, int(answer.ext_fields["nextBeginOffset"])


def runtime(client: RawClient) -> dict[str, str]:
    return json.loads(client.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body_bytes)["table"]


def test_a_topic_over_its_rate_is_refused_as_busy_and_others_are_not(tmp_path):
    """What is over a rate gets SYSTEM_BUSY and is not stored; a second later the topic takes messages again."""
    with (
        served(tmp_path, broker_quotas="topic=orders messages=5; topic=par* bytes=1K") as broker,
        broker.client() as one,
    ):
        codes = send(one, count=20)
        assert codes.count(ResponseCode.SYSTEM_BUSY) >= 10
        assert codes[:5] == [ResponseCode.SUCCESS] * 5
        assert send(one, "others", count=20) == [ResponseCode.SUCCESS] * 20
        # One request may overdraw a rate, so that any message passes.
        assert send(one, "parcels", b"x" * 5000, 2) == [ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY]
        stored = broker.call(lambda: broker.engine.put_nums("orders"))
        assert stored == codes.count(ResponseCode.SUCCESS)
        wait_until(lambda: send(one) == [ResponseCode.SUCCESS])
        table = runtime(one)
        assert "topic=orders:" in table["quotaRefused"]
        assert int(table["quotaRefusedNums"]) >= 11


def test_a_group_over_its_rate_gets_its_messages_later(tmp_path):
    """A pull beyond a group's rate is answered when the group may have more, and nothing is left out."""
    with served(tmp_path, broker_quotas="group=slow messages=40") as broker, broker.client() as client:
        assert send(client, count=100) == [ResponseCode.SUCCESS] * 100
        broker.wait_until_readable()
        for group, waits in (("quick", False), ("slow", True)):
            offset, refused = 0, broker.call(lambda: broker.broker.quotas.refused)
            while offset < 100:
                code, offset = pull(client, group, offset)
                assert code == ResponseCode.SUCCESS
            assert (broker.call(lambda: broker.broker.quotas.refused) > refused) == waits


def test_an_address_has_so_many_connections(tmp_path):
    """Further connections of an address are closed; one that ends makes room."""
    with served(tmp_path, broker_quotas="client=127.0.0.0/8 connections=2") as broker:
        with broker.client() as first, broker.client() as second:
            assert send(first) == send(second) == [ResponseCode.SUCCESS]
            with broker.client() as third, pytest.raises((ConnectionError, AssertionError, EOFError)):
                send(third)
        broker.reaches(lambda: not broker.broker.server.connections)
        with broker.client() as again:
            assert send(again) == [ResponseCode.SUCCESS]


def test_an_address_has_so_many_bytes_in_flight(tmp_path):
    """Sends beyond the bytes in flight are refused; those that were answered no longer count."""
    with served(tmp_path, broker_quotas="client=* in_flight=10K") as broker, broker.client() as client:
        # The broker's loop sleeps until all of them are there, so that it reads them at once.
        sent = threading.Event()
        with ThreadPoolExecutor() as pool:
            asleep = pool.submit(broker.call, sent.wait)
            codes = send(client, body=b"x" * 4000, count=10, after=sent.set)
            asleep.result()
        assert codes[:3] == [ResponseCode.SUCCESS, ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY]
        assert send(client, body=b"x" * 20000) == [ResponseCode.SUCCESS]
        subject = broker.broker.quotas.subject("client", "127.0.0.1", 0.0)
        assert subject is not None
        assert subject.in_flight == 0


def test_a_broker_without_quotas_has_nothing_in_the_way_of_a_send(tmp_path):
    """Without a quota the table of processors is the plain one."""
    with served(tmp_path) as broker:
        assert broker.broker.gate is None
        process = broker.broker.server.processors[RequestCode.SEND_MESSAGE].process
        assert process == broker.broker.sends.send


@pytest.mark.slow
def test_names_that_clients_make_up_do_not_fill_the_memory():
    """Of ten thousand topics those that are at rest are forgotten."""
    quotas = parse_quotas("topic=* messages=10")
    for number in range(25_000):
        subject = quotas.subject("topic", f"t{number}", float(number))
        assert subject is not None
    assert len(quotas.subjects) <= 10_000
    assert quotas.subject("topic", "t" * 256, 1.0) is None


def test_what_was_refused_is_counted_although_its_name_is_forgotten(monkeypatch):
    """A counter that goes back looks like a restart to Prometheus, which then adds all of it once more."""
    monkeypatch.setattr(quotas_module, "SUBJECTS_MAX", 20)
    quotas = parse_quotas("topic=* messages=10; group=* messages=10")
    counts = []
    for number in range(100):
        subject = quotas.subject("topic", f"t{number}", 0.0)
        subject.take(11, 0)
        subject.refuse("messages", 0.0)
        counts.append(quotas.refused_by_kind())
    assert counts == [{"topic": number, "group": 0} for number in range(1, 101)]
    assert len(quotas.subjects) <= 20


def test_a_client_of_ipv4_on_a_listener_of_ipv6_has_its_rule():
    """Such a listener sees its address within one of IPv6."""
    quotas = parse_quotas("client=10.0.0.0/8 connections=1")
    assert quotas.subject("client", "::ffff:10.1.2.3", 0.0) is not None
    assert quotas.subject("client", "::ffff:11.1.2.3", 0.0) is None


def test_a_pull_that_waits_too_long_for_its_quota_gets_nothing(tmp_path, monkeypatch):
    """Its client would have given it up, and would lose the messages of a later answer."""
    monkeypatch.setattr(quota_gate, "PULL_PATIENCE_S", 0.0)
    with served(tmp_path, broker_quotas="group=slow messages=1") as broker, broker.client() as client:
        assert send(client, count=40) == [ResponseCode.SUCCESS] * 40
        broker.wait_until_readable()
        assert pull(client, "slow", 0) == (ResponseCode.SUCCESS, 32)
        assert pull(client, "slow", 32) == (ResponseCode.PULL_NOT_FOUND, 32)


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("orders messages=1", "a rule begins with"),
        ("topic=orders", "has a limit"),
        ("topic=orders connections=1", "topic takes once each: messages, bytes"),
        ("topic=orders messages=1 messages=2", "takes once each"),
        ("topic=orders messages=0", "a number above 0"),
        ("topic=orders bytes=10T", "a number above 0"),
        (f"topic=orders bytes={'9' * 5000}", "a number above 0"),
        ("client=host messages=1", "client takes an address"),
    ],
)
def test_a_wrong_rule_is_named(rule, reason):
    """A rule that cannot hold is refused at the start, with the reason."""
    with pytest.raises(ConfigError, match=reason):
        parse_quotas(f"topic=fine messages=1; {rule}")


def test_no_rule_is_no_quota():
    """An empty setting has no quotas."""
    assert not parse_quotas(" ; ")
    assert isinstance(parse_quotas(""), Quotas)
