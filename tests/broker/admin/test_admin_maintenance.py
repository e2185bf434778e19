"""Old segments, and transactions that were given up, as administrators ask for them."""

from __future__ import annotations

import os
import time

import pytest

from delivering import wait_until
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from serving import RawClient, served

SUCCESS = ResponseCode.SUCCESS


def max_offset(client: RawClient, topic: str) -> int:
    answer = client.ask(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"})
    return int(answer.ext_fields["offset"])


def test_old_segments_go_at_once(tmp_path):
    """Whatever the hour; those that have not had their time stay."""
    with (
        served(tmp_path / "store", mapped_file_size_commit_log=64 << 10, delete_when="00") as broker,
        broker.client() as client,
    ):
        for _ in range(3):
            assert client.send_message("T", b"x" * (60 << 10)).code == SUCCESS
        segments = sorted((tmp_path / "store" / "commitlog").iterdir())
        assert len(segments) >= 3
        long_ago = segments[0].stat().st_mtime - 73 * 3600
        os.utime(segments[0], (long_ago, long_ago))
        # Queues and index have to be on disk as well.
        wait_until(lambda: broker.engine.writer.retention.plan(asked=True)[0].goes)
        assert client.ask(RequestCode.DELETE_EXPIRED_COMMITLOG).code == SUCCESS
        wait_until(lambda: not segments[0].exists())
        assert segments[1].exists()


@pytest.mark.parametrize("code", [RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.CLEAN_UNUSED_TOPIC])
def test_cleaning_removes_nothing_that_is_in_use(broker, client, code):
    """Among it a topic that has messages, but no description."""
    assert client.send_message("T").code == SUCCESS
    wait_until(lambda: max_offset(client, "T") == 1)
    topics = broker.engine.services.topics.manager
    topics.remove("T")
    assert client.ask(code).code == SUCCESS
    assert max_offset(client, "T") == 1


def test_a_transaction_that_was_given_up_is_asked_about_again(tmp_path):
    """By the id of its message among the discarded ones."""
    with (
        served(
            tmp_path / "store", transaction_time_out=0, transaction_check_interval=1, transaction_check_max=1
        ) as broker,
        broker.client() as client,
    ):
        assert client.heartbeat("c", producers=("pg",)).code == SUCCESS
        properties = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": "0A" * 16}
        # One that was born long ago would be given up without a question.
        born = {"bornTimestamp": str(time.time_ns() // 1_000_000)}
        assert client.send_message("T", properties=properties, fields=born).code == SUCCESS
        discarded = "TRANS_CHECK_MAX_TIME_TOPIC"
        wait_until(lambda: max_offset(client, discarded) == 1)
        assert client.request(RequestCode.CHECK_TRANSACTION_STATE).ext_fields["msgId"] == "0A" * 16
        with broker.engine.read_lock:
            (record,) = broker.engine.reader.get_message(discarded, 0, 0, 1).records
        fields = {"topic": discarded, "msgId": record.message_id}
        assert client.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, fields).code == SUCCESS
        assert client.request(RequestCode.CHECK_TRANSACTION_STATE).ext_fields["msgId"] == "0A" * 16


def test_only_a_transaction_that_was_given_up_is_taken_up(broker, client):
    """Not any other message, and no id without one."""
    sent = client.send_message("T")
    wait_until(lambda: max_offset(client, "T") == 1)
    for message_id in (sent.ext_fields["msgId"], "x", "0" * 32):
        answer = client.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"topic": "T", "msgId": message_id})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark
