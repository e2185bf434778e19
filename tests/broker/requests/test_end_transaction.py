"""Transactions: half messages are committed, rolled back, and asked about."""

from __future__ import annotations

import time

import pytest

from broker.requests.test_send_message import stored
from delivering import wait_until
from reput.remoting.request_code import RequestCode as Code
from reput.remoting.response_code import ResponseCode
from reput.store.record.record import decode_record
from serving import served

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
HALF = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": "C0A80001" * 4, "KEYS": "k", "WAIT": "true"}


@pytest.fixture
def broker(tmp_path):
    """A broker that asks soon."""
    with served(tmp_path / "store", transaction_time_out=50, transaction_check_interval=50) as broker:
        yield broker


def send_half(client, body, queue_id=0):
    """Begin a transaction; a message born long ago would be given up at once."""
    born = {"bornTimestamp": str(time.time_ns() // 1_000_000)}
    return client.send_message("T", body, HALF, queue_id=queue_id, fields=born)


def end(client, answer, state, group="pg", **fields):
    """Settle the transaction whose half message was answered so."""
    header = {
        "producerGroup": group,
        "tranStateTableOffset": answer.ext_fields["queueOffset"],
        "commitLogOffset": str(int.from_bytes(bytes.fromhex(answer.ext_fields["msgId"])[-8:], "big")),
        "commitOrRollback": str(state),
        "fromTransactionCheck": "false",
        "msgId": HALF["UNIQ_KEY"],
        **fields,
    }
    return client.ask(Code.END_TRANSACTION, header)


def test_a_commit_shows_the_message_once_and_a_rollback_never(broker, client):
    answers = [send_half(client, body, 1) for body in (b"committed", b"rolled back")]
    assert [answer.ext_fields["queueId"] for answer in answers] == ["1", "1"]
    assert stored(broker, "T", 1) == []
    for answer, state in zip(answers, (COMMIT, ROLLBACK), strict=True):
        assert end(client, answer, state).code == ResponseCode.SUCCESS
    (record,) = stored(broker, "T", 1)
    assert (record.body, record.sys_flag & 12) == (b"committed", 8)
    assert record.properties["REAL_TOPIC"] == "T"


def test_another_group_cannot_settle_a_transaction(broker, client):
    answer = send_half(client, b"x")
    assert end(client, answer, COMMIT, group="others").code == ResponseCode.SYSTEM_ERROR
    assert stored(broker, "T") == []


def test_the_broker_asks_a_producer_of_the_group_until_it_knows(broker, client):
    """The question holds the message with its real topic and queue, and with WAIT=false, as RocketMQ's does."""
    answer = send_half(client, b"x", 2)
    assert answer.code == ResponseCode.SUCCESS
    with broker.client() as producer:
        # Another connection than the one that sent: the producer has been restarted.
        producer.heartbeat("client", producers=("pg",))
        question = producer.request(Code.CHECK_TRANSACTION_STATE)
        half = decode_record(question.body_bytes, 0)
        assert (half.topic, half.queue_id, half.body) == ("T", 2, b"x")
        assert half.properties["WAIT"] == "false"
        assert half.properties["UNIQ_KEY"] == question.ext_fields["transactionId"] == question.ext_fields["msgId"]
        assert int(half.properties["TRANSACTION_CHECK_TIMES"]) >= 1
        while True:
            fields = question.ext_fields
            settled = producer.ask(
                Code.END_TRANSACTION,
                {
                    "producerGroup": "pg",
                    "tranStateTableOffset": fields["tranStateTableOffset"],
                    "commitLogOffset": fields["commitLogOffset"],
                    "commitOrRollback": str(COMMIT),
                    "fromTransactionCheck": "true",
                    "msgId": fields["msgId"],
                },
            )
            if settled.code == ResponseCode.SUCCESS:
                break
            # Meanwhile the broker has put the half message again, and asked again.
            question = producer.request(Code.CHECK_TRANSACTION_STATE)
    wait_until(lambda: len(stored(broker, "T", 2)) == 1)


def test_the_broker_asks_the_producers_of_a_group_in_turn(broker, client):
    """One that hangs does not get every question, until the broker gives the transaction up."""
    with broker.client() as first, broker.client() as second:
        first.heartbeat("first", producers=("pg",))
        second.heartbeat("second", producers=("pg",))
        assert send_half(client, b"x").code == ResponseCode.SUCCESS
        for producer in (first, second, first, second):
            producer.request(Code.CHECK_TRANSACTION_STATE)


def test_a_transaction_with_a_delay_is_refused(broker, client):
    """Its message must not be delivered before the commit, and RocketMQ's own clients leave the delay out."""
    answer = client.send_message("T", b"x", HALF | {"DELAY": "1"})
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "cannot be delayed" in answer.remark


def send_half_of(client, UNIQ_KEY, **properties):
    """Begin a transaction with this unique key."""
    born = {"bornTimestamp": str(time.time_ns() // 1_000_000)}
    return client.send_message("T", b"x", HALF | {"UNIQ_KEY": UNIQ_KEY} | properties, fields=born)


def send_halves(client, *uniq_keys):
    """Begin transactions with these unique keys."""
    for uniq_key in uniq_keys:
        assert send_half_of(client, uniq_key).code == ResponseCode.SUCCESS


def test_a_half_message_makes_no_earlier_transaction_be_asked_about_sooner(tmp_path):
    """A busy producer would otherwise use up the questions about one whose state it does not know yet."""
    with (
        served(tmp_path / "store", transaction_time_out=50, transaction_check_interval=60_000) as broker,
        broker.client() as client,
    ):
        client.heartbeat("client", producers=("pg",))
        for uniq_key in ("0A" * 16, "0B" * 16, "0C" * 16):
            send_halves(client, uniq_key)
            assert client.request(Code.CHECK_TRANSACTION_STATE).ext_fields["msgId"] == uniq_key


def test_a_producer_that_comes_and_goes_is_not_asked_more_often(tmp_path):
    """Its questions keep their interval, so flapping does not use them up; new transactions are asked about."""
    with (
        served(tmp_path / "store", transaction_time_out=50, transaction_check_interval=60_000) as broker,
        broker.client() as sender,
    ):
        send_halves(sender, "0A" * 16)
        for uniq_key in ("0A" * 16, "0B" * 16, "0C" * 16):
            with broker.client() as producer:
                producer.heartbeat("client", producers=("pg",))
                if uniq_key != "0A" * 16:
                    send_halves(producer, uniq_key)
                assert producer.request(Code.CHECK_TRANSACTION_STATE).ext_fields["msgId"] == uniq_key
            wait_until(lambda: not broker.broker.clients.producers)


def test_a_question_counts_only_if_a_producer_is_connected(broker, client):
    """A group that is away longer than its questions would take does not lose its transactions."""
    with broker.client() as producer:
        producer.heartbeat("client", producers=("pg",))
        assert send_half(client, b"x").code == ResponseCode.SUCCESS
        producer.request(Code.CHECK_TRANSACTION_STATE)
    wait_until(lambda: not broker.broker.clients.producers)
    transactions = broker.engine.transactional_messages.open_transactions
    (transaction,) = transactions.pending.values()
    with transactions.changed:
        asked, due = transaction.commit_log_offset, transaction.due
    wait_until(lambda: transaction.due > due + 500)
    assert transaction.commit_log_offset == asked


def test_too_many_open_transactions_are_refused(tmp_path):
    """With the answer after which clients try again later; once one is settled, there is room for another."""
    with served(tmp_path / "store", open_transactions_max=2) as broker, broker.client() as client:
        first, _ = (send_half_of(client, uniq_key) for uniq_key in ("0A" * 16, "0B" * 16))
        refused = send_half_of(client, "0C" * 16)
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert "open_transactions_max=2" in refused.remark
        assert end(client, first, ROLLBACK).code == ResponseCode.SUCCESS
        assert send_half_of(client, "0C" * 16).code == ResponseCode.SUCCESS


def test_settled_transactions_do_not_stay_in_memory(broker, client):
    """Those with a long immunity time of their own would, until then."""
    for number in range(1100):
        properties = HALF | {"UNIQ_KEY": f"{number:032X}", "CHECK_IMMUNITY_TIME_IN_SECONDS": "1000000"}
        answer = send_half_of(client, **properties)
        assert end(client, answer, ROLLBACK).code == ResponseCode.SUCCESS
    assert len(broker.engine.transactional_messages.open_transactions.schedule) <= 1010


def test_a_half_message_costs_the_same_however_many_transactions_are_open(tmp_path):
    """Those that wait are not scheduled anew with each that comes."""
    with served(tmp_path / "store", transaction_time_out=600_000) as broker, broker.client() as client:
        client.heartbeat("client", producers=("pg",))
        count = 50
        send_halves(client, *(f"{number:032X}" for number in range(count)))
        transactions = broker.engine.transactional_messages.open_transactions
        assert len(transactions.pending) == count
        assert len(transactions.schedule) <= 2 * count
